-- How the jobs' sessions begin. Each statement follows a line `-- name: NAME`.

-- Under these settings the text of a value is a function of the value, whatever the defaults of servers, databases
-- and roles. No parallel workers: the tasks are the parallelism, and their number is the load that was asked for.
-- name: settings
SELECT set_config('DateStyle', 'ISO, YMD', false),
       set_config('IntervalStyle', 'postgres', false),
       set_config('TimeZone', 'UTC', false),
       set_config('extra_float_digits', '3', false),
       set_config('bytea_output', 'hex', false),
       set_config('lc_monetary', 'C', false),
       set_config('xmloption', 'content', false),
       set_config('client_encoding', 'UTF8', false),
       set_config('search_path', 'pg_catalog', false),
       set_config('row_security', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('jit', 'off', false),
       set_config('statement_timeout', '0', false),
       set_config('lock_timeout', '60s', false),
       set_config('idle_in_transaction_session_timeout', '0', false);

-- name: import
SET TRANSACTION SNAPSHOT {snapshot};

-- name: visible
SELECT pg_current_snapshot()::text;

-- name: lock
LOCK TABLE {relation} IN ACCESS SHARE MODE;

-- A name that stands for a view an instant later would run the code of its owner: none is read any more by this
-- transaction, on servers that know how (from 15.8 and 16.4 on).
-- name: tables_only
SELECT set_config(name, 'view, foreign-table', true) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind';

-- What the name stands for now, and which file holds its rows: both are looked up in the present catalog, not at the
-- snapshot.
-- name: unchanged
SELECT to_regclass(format('%I.%I', {schema}::text, {name}::text)) = {oid}::oid
       AND pg_relation_filenode({oid}::oid) = {filenode}::oid
