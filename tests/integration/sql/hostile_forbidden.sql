-- What an ordinary user, the owner of his tables, tries in order to write past the hook.
-- case: disable the capture triggers
ALTER TABLE plain DISABLE TRIGGER ALL
-- case: disable one capture trigger
ALTER TABLE plain DISABLE TRIGGER pgherd_insert
-- case: disable the user's triggers
ALTER TABLE plain DISABLE TRIGGER USER
-- case: drop a capture trigger
DROP TRIGGER pgherd_update ON plain
-- case: rename a capture trigger
ALTER TRIGGER pgherd_update ON plain RENAME TO mine
-- case: put another trigger in its place
CREATE OR REPLACE TRIGGER pgherd_insert AFTER INSERT ON plain FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()
-- case: replica role
SET session_replication_role = replica
-- case: read our state
SELECT secret FROM pgherd.node
-- case: write our state
UPDATE pgherd.node SET writable = true
-- case: write the chain
INSERT INTO pgherd.applied VALUES (999999999, 1, NULL)
-- case: empty the capture
TRUNCATE pgherd.capture_0, pgherd.capture_1
-- case: call certify
BEGIN; INSERT INTO plain VALUES (50, 'x'); SELECT pgherd.certify()
-- case: call arm's helper
SELECT pgherd.connect_hook('x', 'host=/tmp')
-- case: talk to the sidecar over dblink
SELECT pgherd.dblink_exec('pgherd_1', 'W x 1 1 0')
-- case: dblink without a password
SELECT pgherd.dblink_connect_u('x', 'host=/tmp port=1')
-- case: use our capture function as a trigger of mine
CREATE TABLE mine (id int PRIMARY KEY); CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION pgherd.arm()
-- case: a trigger on our tables
CREATE TRIGGER t AFTER INSERT ON pgherd.applied FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()
-- case: a rule that swallows captured rows
CREATE RULE r AS ON INSERT TO pgherd.capture_0 DO INSTEAD NOTHING
-- case: a function in our schema
CREATE FUNCTION pgherd.f() RETURNS int LANGUAGE sql AS 'SELECT 1'
-- case: inherit from the capture table
CREATE TABLE heir () INHERITS (pgherd.capture_0)
-- case: a trigger that fires on appliers
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; CREATE TRIGGER always BEFORE INSERT ON plain FOR EACH ROW EXECUTE FUNCTION f(); ALTER TABLE plain ENABLE ALWAYS TRIGGER always
-- case: a holdable cursor that writes after us
BEGIN; DECLARE mine CURSOR WITH HOLD FOR SELECT nextval('s'); INSERT INTO plain VALUES (51, 'x')
-- case: fetch from our cursor and write on
BEGIN; INSERT INTO plain VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = plain.v; SET CONSTRAINTS ALL IMMEDIATE; FETCH ALL FROM pgherd_commit; UPDATE plain SET v = 'more'
-- case: drop the extension
DROP EXTENSION dblink CASCADE
-- case: drop our schema
DROP SCHEMA pgherd CASCADE
-- case: alter our function
ALTER FUNCTION pgherd.certify() RESET ALL
-- case: prepare transaction
BEGIN; INSERT INTO plain VALUES (52, 'x'); PREPARE TRANSACTION 'p'
-- case: a deferred trigger of a temporary table
CREATE TEMP TABLE scratch (id int); CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'CLOSE ALL'; RETURN NULL; END $$; CREATE CONSTRAINT TRIGGER q AFTER INSERT ON scratch DEFERRABLE FOR EACH ROW EXECUTE FUNCTION f()
-- case: a deferred exclusion constraint of a temporary table
CREATE FUNCTION f(a int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN closing(); END $$; CREATE TEMP TABLE scratch (id int, EXCLUDE (f(id) WITH =) DEFERRABLE)
-- case: a deferred exclusion constraint of a local table
CREATE TABLE here (id int PRIMARY KEY); SELECT pgherd.set_local('here'); CREATE FUNCTION f(a int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN closing(); END $$; ALTER TABLE here ADD EXCLUDE (f(id) WITH =) DEFERRABLE
-- case: code in a conversion of no rows
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE TABLE e (id int PRIMARY KEY, c text); ALTER TABLE e ALTER c TYPE int USING f(1)
-- case: code of another name in a conversion of no rows
CREATE FUNCTION "U&f"(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE TABLE e (id int PRIMARY KEY, c text); ALTER TABLE e ALTER c TYPE int USING U&"\0055&f"(1)
-- case: code in a conversion that looks like a column
CREATE TYPE pair AS (a int, b int); CREATE FUNCTION f(pair) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE TABLE e (id int PRIMARY KEY, c text); ALTER TABLE e ALTER c TYPE int USING (ROW(1, 2)::pair).f
-- case: code in a conversion that looks like a column of the table
CREATE TABLE e (id int PRIMARY KEY, c text); CREATE FUNCTION f(e) RETURNS int IMMUTABLE LANGUAGE sql RETURN 1; INSERT INTO e VALUES (1, '1'); ALTER TABLE e ALTER c TYPE int USING e.f
-- case: code in an operator of a conversion
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE OPERATOR <+> (RIGHTARG = int, FUNCTION = f); CREATE TABLE e (id int PRIMARY KEY, c text); ALTER TABLE e ALTER c TYPE int USING <+> 1
-- case: code in the default of a new column
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE TABLE e (id int PRIMARY KEY); ALTER TABLE e ADD c int DEFAULT f(1)
-- case: code in the default of a new column's domain
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE DOMAIN d AS int DEFAULT f(1); CREATE TABLE e (id int PRIMARY KEY); ALTER TABLE e ADD c d
-- case: code in a temporary domain
CREATE FUNCTION f(int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN true; END'; CREATE DOMAIN pg_temp.d AS int CHECK (f(VALUE))
-- case: code in the bound of a partition
CREATE FUNCTION f(record) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE TABLE e (id int PRIMARY KEY) PARTITION BY LIST (id); CREATE TABLE e1 PARTITION OF e FOR VALUES IN ((ROW(1)).f)
-- case: code in an operator that a conversion implies
CREATE FUNCTION f(int, int) RETURNS bool IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN true; END'; CREATE OPERATOR >= (LEFTARG = int, RIGHTARG = int, FUNCTION = f); CREATE TABLE e (id int PRIMARY KEY, c text); ALTER TABLE e ALTER c TYPE bool USING 1 BETWEEN 0 AND 2
-- case: code in a view that the default of a new column reads
CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; CREATE VIEW w AS SELECT f(1); CREATE TABLE e (id int PRIMARY KEY); ALTER TABLE e ADD c text DEFAULT table_to_xml('w'::regclass, true, true, '')::text
