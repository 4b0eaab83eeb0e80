-- What the snapshot job reads besides rows. Each statement follows a line `-- name: NAME`.

-- In the session of the program that copies: nothing of it may reach the output.
-- name: begin
BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;

-- Quoted as a literal: a table's name may hold any dollar quote.
-- name: do
DO {body};

-- name: execute
BEGIN
    EXECUTE {statement};
END

-- name: require_unchanged
BEGIN
    IF ({unchanged}) IS NOT TRUE THEN
        RAISE EXCEPTION 'the table was truncated, rewritten, renamed or replaced since the marker';
    END IF;
END

-- name: copy
COPY (SELECT {columns} FROM {relation} t WHERE {range}) TO STDOUT (FORMAT {form});

-- The sequences as their users made them. A member knows them by numbers of its own.
-- name: sequences
SELECT k.relid::int8, n.nspname, c.relname, k.step, k.start
  FROM pgherd.sequences k JOIN pg_class c ON c.oid = k.relid JOIN pg_namespace n ON n.oid = c.relnamespace
 ORDER BY format('%I.%I', n.nspname, c.relname);

-- How far a member has come with the numbers of its share. Sequences know no snapshot: this is later than the marker.
-- The last number; of a sequence that setval or a crash has moved on, and nobody has used since, the one before the
-- next. None where a member stands at its first number.
-- name: positions
SELECT k.relid::int8,
       CASE WHEN (s.at ->> 1)::bool THEN (s.at ->> 0)::int8
            WHEN abs((s.at ->> 0)::numeric - k.start) >= abs(k.step::numeric) * d.slots THEN (s.at ->> 0)::int8 - k.step
       END
  FROM pgherd.sequences k JOIN pg_class c ON c.oid = k.relid JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN jsonb_each(pgherd.sequence_standings()) AS s(name, at) ON s.name = format('%I.%I', n.nspname, c.relname)
 CROSS JOIN pgherd.node d;

-- name: certification_state
SELECT pgherd.certification_state();

-- Has the log after `held` kept, and a checkpoint made at or after `wanted`, for some seconds.
-- name: hold
SELECT pgherd.hold_log_for(%s::int, %s::int8, %s::int8, %s::float8);

-- The lock of a job ends with its session, which the server ends half a minute after the job's machine has gone.
-- name: noticed_if_gone
SELECT set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false),
       set_config('tcp_keepalives_count', '4', false);

-- name: own
SELECT pg_try_advisory_lock(hashtextextended(%s::text, 0));

-- name: local_tables
SELECT l.name FROM pgherd.local_tables l ORDER BY l.name;

-- name: shared
-- What every member has of roles, memberships, settings and privileges on the database, without passwords.
SELECT to_jsonb(s.key), s.value - 'PASSWORD' FROM pgherd.shared s ORDER BY s.key;

-- name: populated
SELECT n.nspname, c.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind = 'm' AND c.relispopulated
 ORDER BY 1, 2;

-- What of the users' a plain server can't have.
-- name: uses_ours
SELECT pgherd.leaving_obstacles();

-- name: role_limits
SELECT l.name, l.nodes FROM pgherd.role_limits l ORDER BY l.name;
