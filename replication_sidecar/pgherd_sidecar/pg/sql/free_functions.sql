-- Our functions that everybody may call, as views and defaults of the users name them, for a server that is filled
-- before it is a member's. They do nothing: the member's own replace them. 090_grants.sql has the list.

CREATE SCHEMA IF NOT EXISTS pgherd;
GRANT USAGE ON SCHEMA pgherd TO PUBLIC;

CREATE OR REPLACE FUNCTION pgherd.current_token() RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
CREATE OR REPLACE FUNCTION pgherd.transaction_status(token text) RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
CREATE OR REPLACE FUNCTION pgherd.set_local("table" regclass) RETURNS void LANGUAGE sql AS '';
CREATE OR REPLACE FUNCTION pgherd.set_replicated("table" regclass) RETURNS void LANGUAGE sql AS '';
CREATE OR REPLACE FUNCTION pgherd.run_everywhere(command text) RETURNS void LANGUAGE sql AS '';
CREATE OR REPLACE FUNCTION pgherd.setval(sequence regclass, value int8, is_called bool DEFAULT true) RETURNS int8
LANGUAGE sql AS 'SELECT NULL::int8';
CREATE OR REPLACE FUNCTION pgherd.last_gid() RETURNS int8 LANGUAGE sql AS 'SELECT NULL::int8';
CREATE OR REPLACE FUNCTION pgherd.last_commit_gid() RETURNS int8 LANGUAGE sql AS 'SELECT NULL::int8';
CREATE OR REPLACE FUNCTION pgherd.wait_for(gid int8, timeout interval DEFAULT '30 seconds') RETURNS int8
LANGUAGE sql AS 'SELECT NULL::int8';
CREATE OR REPLACE FUNCTION pgherd.strong(timeout interval DEFAULT '10 seconds') RETURNS int8
LANGUAGE sql AS 'SELECT NULL::int8';
CREATE OR REPLACE FUNCTION pgherd.fresh(token int8 DEFAULT NULL, timeout interval DEFAULT '10 seconds') RETURNS int8
LANGUAGE sql AS 'SELECT NULL::int8';
CREATE OR REPLACE PROCEDURE pgherd.begin_strong(timeout interval DEFAULT '10 seconds') LANGUAGE sql AS '';
CREATE OR REPLACE FUNCTION pgherd.why_read_only() RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
CREATE OR REPLACE FUNCTION pgherd.gid_of_row(tab regclass, VARIADIC key text[], OUT gid int8, OUT since int8)
LANGUAGE sql AS 'SELECT NULL::int8, NULL::int8';
