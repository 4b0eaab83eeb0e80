-- Total recovery by statements instead of files: what has to be carried besides what pg_dump knows, and how a
-- fresh server that was filled so is taken over. And what two servers must have in common to be of one herd.

-- Tells two servers apart that would hash equal keys otherwise, so that one misses the conflicts which the other
-- sees. The sample is of every type whose hash is PostgreSQL's own. Collations whose "=" is not equality of bytes
-- are hashed by their sort keys, which another version of ICU makes otherwise.
CREATE OR REPLACE FUNCTION pgherd.key_fingerprint() RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC'
BEGIN ATOMIC
    SELECT md5(concat_ws(' ', current_setting('server_encoding'), pgherd.name_hash('sample'), hashint8extended(-1, 1),
        hash_record_extended(ROW(
            true, 'c'::"char", 1::int2, -1::int4, 1::int8, 1.5::float4, -0.0::float8, 'NaN'::float8, 1.10::numeric,
            'A b'::text, 'A b '::bpchar, 'n'::name, decode('0001', 'hex'), 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6'::uuid,
            '2026-11-22'::date, '12:34:56.789'::time, '12:34:56+02'::timetz, '2026-11-22 12:34:56'::timestamp,
            '2026-11-22 12:34:56Z'::timestamptz, '1 mon 2 days 3 s'::interval), 7),
        hash_record_extended(ROW(
            '10.0.0.1/8'::inet, '08:00:2b:01:02:03'::macaddr, '08:00:2b:01:02:03:04:05'::macaddr8, '{1,2}'::int4[],
            '{a,NULL}'::text[], '[1,3)'::int4range, '{[1,3)}'::int4multirange, '[1.0,)'::numrange,
            '{"a": [1, null, "b"]}'::jsonb, '16/B374D848'::pg_lsn, '7'::xid8), 7),
        (SELECT string_agg(format('%I.%I %s', n.nspname, c.collname, pg_collation_actual_version(c.oid)), ' '
                           ORDER BY n.nspname, c.collname)
           FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace WHERE NOT c.collisdeterministic)));
END;

-- What a dump does not say, to be read in its snapshot: the GID at which it stands, what users mean by INCREMENT and
-- START, which tables are local, and which roles, memberships and privileges on the database every member has.
CREATE OR REPLACE FUNCTION pgherd.carried() RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT jsonb_build_object(
        'gid', pgherd.last_gid(),
        'skipped', (SELECT coalesce(jsonb_agg(k.gid ORDER BY k.gid), '[]') FROM pgherd.skipped k),
        'local_tables', (SELECT coalesce(jsonb_agg(l.name), '[]') FROM pgherd.local_tables l),
        'long_commands', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                              'token', l.token, 'member', l.member, 'definition', l.definition, 'tab', l.tab, 'index', l.index,
                              'done', l.done, 'failed', l.failed, 'kind', l.kind, 'go', l.go,
                              'row_key', l.row_key, 'columns', l.columns, 'state', l.state)), '[]')
                            FROM pgherd.long_commands l),
        'shared', (SELECT coalesce(jsonb_agg(jsonb_build_array(to_jsonb(s.key), s.value - 'PASSWORD') ORDER BY s.key), '[]')
                     FROM pgherd.shared s),
        'role_limits', (SELECT coalesce(jsonb_object_agg(l.name, l.nodes), '{}') FROM pgherd.role_limits l),
        'sequences', (SELECT coalesce(jsonb_object_agg(format('%I.%I', n.nspname, c.relname),
                                                       jsonb_build_object('step', k.step, 'start', k.start)), '{}')
                        FROM pgherd.sequences k JOIN pg_class c ON c.oid = k.relid
                        JOIN pg_namespace n ON n.oid = c.relnamespace));
END;

-- Makes a database that was filled with what was dumped at a GID one whose commit chain ends there. Then it is as a
-- copy of a partner's files: become_member() does the rest.
CREATE OR REPLACE FUNCTION pgherd.take_over(number int, name text, slots int, carried jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET session_replication_role = replica AS $$
DECLARE stands int8 := carried->>'gid';
BEGIN
    INSERT INTO pgherd.node (member, member_name, slots, incarnation, epoch, secret, hook_conninfo, writable, reason)
    VALUES (number, name, slots, 0, 0, gen_random_uuid()::text, '', false, 'it is being made');
    INSERT INTO pgherd.applied (gid, prev) SELECT stands, stands - 1 WHERE stands > 0;
    INSERT INTO pgherd.skipped SELECT k.gid::int8 FROM jsonb_array_elements_text(carried->'skipped') AS k(gid);
    INSERT INTO pgherd.local_tables (name, relid)
    SELECT l.name, to_regclass(l.name) FROM jsonb_array_elements_text(carried->'local_tables') AS l(name);
    INSERT INTO pgherd.long_commands (token, member, definition, tab, index, done, failed, relid, kind, go, row_key,
                                      columns, state)
    SELECT l.token, l.member, l.definition, l.tab, l.index, l.done, l.failed, to_regclass(l.tab), l.kind,
           l.go, l.row_key, l.columns, l.state
      FROM jsonb_to_recordset(carried->'long_commands')
           AS l(token text, member int, definition text, tab text, index text, done int[], failed text, kind text, go bool,
                row_key text, columns name[], state text);
    INSERT INTO pgherd.sequences
    SELECT to_regclass(s.key)::oid, (s.value->>'step')::int8, (s.value->>'start')::int8
      FROM jsonb_each(carried->'sequences') AS s WHERE to_regclass(s.key) IS NOT NULL;
    PERFORM pgherd.look_again();
    DELETE FROM pgherd.shared;
    INSERT INTO pgherd.shared SELECT * FROM pgherd.shared_now();
    UPDATE pgherd.shared s SET value = s.value || coalesce(pgherd.document_change(s.value - 'PASSWORD', d.value, false), '{}')
      FROM (SELECT array(SELECT jsonb_array_elements_text(c.one -> 0)) AS key, c.one -> 1 AS value
              FROM jsonb_array_elements(carried->'shared') AS c(one)) d
     WHERE s.key = d.key;
    UPDATE pgherd.shared s SET value = jsonb_strip_nulls(s.value);
    INSERT INTO pgherd.shared (key, value)
    SELECT array(SELECT jsonb_array_elements_text(c.one -> 0)), c.one -> 1 FROM jsonb_array_elements(carried->'shared') AS c(one)
        ON CONFLICT DO NOTHING;
    DELETE FROM pgherd.shared s
     WHERE to_jsonb(s.key) NOT IN (SELECT c.one -> 0 FROM jsonb_array_elements(carried->'shared') AS c(one));
    INSERT INTO pgherd.role_limits SELECT l.key, array(SELECT jsonb_array_elements_text(l.value))
      FROM jsonb_each(carried->'role_limits') l;
    PERFORM pgherd.restore_shared();
    DELETE FROM pgherd.owners;
    INSERT INTO pgherd.owners SELECT o.class, o.object, o.owner FROM pgherd.owned o;
    PERFORM pgherd.reconcile();
END $$;

-- Tables whose rows a dump reads, as [schema, name, bytes], and which files they are.
CREATE OR REPLACE FUNCTION pgherd.dumped_tables(OUT tables jsonb, OUT files text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(jsonb_agg(jsonb_build_array(n.nspname, c.relname, pg_table_size(c.oid)) ORDER BY c.oid), '[]'),
           md5(string_agg(c.oid || ' ' || c.relfilenode, ' ' ORDER BY c.oid))
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relkind = 'r' AND c.relpersistence <> 't'
       AND n.nspname NOT LIKE E'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgherd', 'pgherd_gen');
END;
