"""Commands of which each member would compute something for itself, and their neighbours.

Each refused case is what is there before, and what is tried. What is allowed is one message, which
every member must execute alike.
"""

_ENUM = (
    "CREATE TYPE en AS ENUM ('a', 'b', 'c'); CREATE DOMAIN den AS en;"
    "CREATE TYPE comp AS (e en, i int);"
)
_HASH = "CREATE TABLE t (id int, k {}, PRIMARY KEY (id, k)) PARTITION BY HASH ({})"
_GENERATED = (
    "CREATE TABLE t (id int PRIMARY KEY, e en, g {} GENERATED ALWAYS AS ({}) STORED, x text)"
)
_PLAIN = "CREATE TABLE t (id int PRIMARY KEY, f float8, b bytea, p point, x text, e en);"
_LOCAL = (
    "CREATE TABLE t (id int PRIMARY KEY, v int, x text, w varchar(5), d date);"
    "SELECT pgherd.set_local('t');"
)
_LOCAL_TREE = (
    "CREATE TABLE p (id int, v int) PARTITION BY RANGE (id); SELECT pgherd.set_local('p');"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
)

#: Hashes of oids: rows would be in other partitions.
HASHED = {
    "enum": (_ENUM, _HASH.format("en", "k")),
    "enum_as_second": (_ENUM, _HASH.format("en", "id, k")),
    "domain_of_enum": (_ENUM, _HASH.format("den", "k")),
    "array_of_enum": (_ENUM, _HASH.format("en[]", "k")),
    "composite_of_enum": (_ENUM, _HASH.format("comp", "k")),
    "oid": ("", _HASH.format("oid", "k")),
    "expression": (_ENUM, "CREATE TABLE t (id int, k en) PARTITION BY HASH ((ARRAY[k]))"),
    "range_of_hash": (_ENUM, "CREATE TABLE t (id int, k en) PARTITION BY RANGE (hashenum(k))"),
    "below_another": (
        f"{_ENUM} CREATE TABLE p (id int, k en, PRIMARY KEY (id, k)) PARTITION BY RANGE (id)",
        "CREATE TABLE t PARTITION OF p FOR VALUES FROM (1) TO (9) PARTITION BY HASH (k)",
    ),
    "composite_that_gets_an_enum": (
        "CREATE TYPE en AS ENUM ('a'); CREATE TYPE c AS (i int);" + _HASH.format("c", "k"),
        "ALTER TYPE c ADD ATTRIBUTE e en",
    ),
}

#: Oids, system columns and settings in what is computed for each row.
COMPUTED = {
    "system_column": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, g int8 GENERATED ALWAYS AS (tableoid::int8) STORED)",
    ),
    "hash_of_enum": (_ENUM, _GENERATED.format("int", "hashenum(e)")),
    "extended_hash_of_enum": (_ENUM, _GENERATED.format("int8", "hashenumextended(e, 1)")),
    "hash_of_array": (_ENUM, _GENERATED.format("int", "hash_array(ARRAY[e])")),
    "hash_of_record": (_ENUM, _GENERATED.format("int", "hash_record(ROW(e))")),
    "hash_of_oid": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, o oid, g int GENERATED ALWAYS AS (hashoid(o)) STORED)",
    ),
    "order_of_bytes": (_ENUM, _GENERATED.format("bool", "ROW(e)::record *< ROW('b'::en)::record")),
    "configuration_as_a_number": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, g int8"
        " GENERATED ALWAYS AS ('english'::regconfig::oid::int8) STORED)",
    ),
    "catalog_called_immutable": (
        "",
        "CREATE TABLE t (id int PRIMARY KEY, o oid, g int GENERATED"
        " ALWAYS AS (information_schema._pg_char_octet_length(o, id)) STORED)",
    ),
    "check_system_column": ("", "CREATE TABLE t (id int PRIMARY KEY CHECK (tableoid > 0))"),
    "check_hash": (_ENUM, "CREATE TABLE t (id int PRIMARY KEY, e en CHECK (hashenum(e) <> 5))"),
    "check_of_domain": (_ENUM, "CREATE DOMAIN d AS en CHECK (hashenum(VALUE) > 0)"),
    "unique_float_as_text": (_ENUM + _PLAIN, "CREATE UNIQUE INDEX ON t ((f::text))"),
    "unique_bytea_as_text": (_ENUM + _PLAIN, "CREATE UNIQUE INDEX ON t ((b::text))"),
    "unique_point_as_text": (_ENUM + _PLAIN, "CREATE UNIQUE INDEX ON t (textin(point_out(p)))"),
    "unique_where_float_as_text": (
        _ENUM + _PLAIN,
        "CREATE UNIQUE INDEX ON t (id) WHERE f::text > '1'",
    ),
    "unique_where_hash": (_ENUM + _PLAIN, "CREATE UNIQUE INDEX ON t (id) WHERE hashenum(e) > 0"),
    "exclusion_float_as_text": (
        _ENUM + _PLAIN,
        "ALTER TABLE t ADD EXCLUDE USING btree ((f::text) WITH =)",
    ),
    "index_that_may_fail": (_ENUM + _PLAIN, "CREATE INDEX ON t ((1 / (length(f::text) - 18)))"),
    "view_of_hash": (_ENUM + _PLAIN, "CREATE MATERIALIZED VIEW v AS SELECT hashenum(e) FROM t"),
    "view_of_sample": (
        _ENUM + _PLAIN,
        "CREATE MATERIALIZED VIEW v AS SELECT * FROM t TABLESAMPLE SYSTEM (50)",
    ),
    "view_of_sequence": (
        "CREATE SEQUENCE s",
        "CREATE MATERIALIZED VIEW v AS SELECT last_value FROM s",
    ),
    "view_of_ours": ("", "CREATE MATERIALIZED VIEW v AS SELECT xid FROM pgherd.applied"),
}

#: Commands that look at rows of a local table, and marks that differ within a tree.
LOCAL = {
    "not_null": (_LOCAL, "ALTER TABLE t ALTER v SET NOT NULL"),
    "check": (_LOCAL, "ALTER TABLE t ADD CHECK (v > 0)"),
    "validate": (
        f"{_LOCAL} ALTER TABLE t ADD CONSTRAINT c CHECK (v > 0) NOT VALID",
        "ALTER TABLE t VALIDATE CONSTRAINT c",
    ),
    "unique": (_LOCAL, "ALTER TABLE t ADD UNIQUE (v)"),
    "unique_index": (_LOCAL, "CREATE UNIQUE INDEX ON t (v)"),
    "index_of_large_values": (_LOCAL, "CREATE INDEX ON t (x)"),
    "index_of_expression": (_LOCAL, "CREATE INDEX ON t ((1 / v))"),
    "exclusion": (_LOCAL, "ALTER TABLE t ADD EXCLUDE (v WITH =)"),
    "foreign_key": (_LOCAL, "ALTER TABLE t ADD FOREIGN KEY (v) REFERENCES t"),
    "new_column_not_null": (_LOCAL, "ALTER TABLE t ADD z int NOT NULL"),
    "new_column_check": (_LOCAL, "ALTER TABLE t ADD z int DEFAULT 5 CHECK (z > id)"),
    "new_column_serial": (_LOCAL, "ALTER TABLE t ADD z serial"),
    "wider_type": (_LOCAL, "ALTER TABLE t ALTER v TYPE bigint"),
    "narrower_type": (_LOCAL, "ALTER TABLE t ALTER w TYPE varchar(2)"),
    "domain": (
        f"CREATE DOMAIN d AS int; {_LOCAL} ALTER TABLE t ADD z d",
        "ALTER DOMAIN d ADD CHECK (VALUE > 0)",
    ),
    "domain_not_null": (
        f"CREATE DOMAIN d AS int; {_LOCAL} ALTER TABLE t ADD z d",
        "ALTER DOMAIN d SET NOT NULL",
    ),
    "attach": (
        f"{_LOCAL_TREE} CREATE TABLE t (id int, v int); SELECT pgherd.set_local('t')",
        "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (10) TO (20)",
    ),
    "partition_beside_the_default": (
        f"{_LOCAL_TREE} CREATE TABLE d PARTITION OF p DEFAULT",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
    ),
    "attach_local_to_replicated": (
        f"{_LOCAL} CREATE TABLE p (LIKE t) PARTITION BY RANGE (id)",
        "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (0) TO (100)",
    ),
    "attach_replicated_to_local": (
        f"{_LOCAL_TREE} CREATE TABLE t (id int, v int)",
        "ALTER TABLE p ATTACH PARTITION t FOR VALUES FROM (10) TO (20)",
    ),
    "inherit_local": (
        f"{_LOCAL} CREATE TABLE c (LIKE t INCLUDING ALL)",
        "ALTER TABLE c INHERIT t",
    ),
    "local_inherits": (
        f"{_LOCAL} CREATE TABLE p (id int)",
        "ALTER TABLE t INHERIT p",
    ),
    "inherit_from_both": (
        f"{_LOCAL} CREATE TABLE p (id int PRIMARY KEY)",
        "CREATE TABLE c () INHERITS (p, t)",
    ),
    "mark_child": (
        "CREATE TABLE p (id int PRIMARY KEY); CREATE TABLE t () INHERITS (p)",
        "SELECT pgherd.set_local('t')",
    ),
}

#: Ranges of sequences that become smaller, by whatever way.
SEQUENCES = {
    "identity_smallint": (
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
        "ALTER TABLE t ALTER id TYPE smallint",
    ),
    "identity_int": (
        "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY)",
        "ALTER TABLE t ALTER id TYPE int",
    ),
    "identity_of_local": (
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY); SELECT pgherd.set_local('t')",
        "ALTER TABLE t ALTER id TYPE smallint",
    ),
    "identity_range": (
        "CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
        "ALTER TABLE t ALTER id SET MAXVALUE 1000",
    ),
    "sequence_type": ("CREATE SEQUENCE s", "ALTER SEQUENCE s AS smallint"),
}

REFUSED = {
    f"{kind}_{name}": case
    for kind, cases in (
        ("hash", HASHED),
        ("computed", COMPUTED),
        ("local", LOCAL),
        ("sequence", SEQUENCES),
    )
    for name, case in cases.items()
}

#: What is next to those and must go on working.
ALLOWED = {
    "hash_partitions": _ENUM
    + """
        CREATE TABLE h1 (id int PRIMARY KEY) PARTITION BY HASH (id);
        CREATE TABLE h2 (id text PRIMARY KEY) PARTITION BY HASH (id);
        CREATE TABLE h3 (u uuid, n numeric, d date, z timestamptz, PRIMARY KEY (u, n, d, z))
            PARTITION BY HASH (u, n, d, z);
        CREATE TABLE h4 (id text) PARTITION BY HASH (lower(id));
        CREATE TABLE h5 (a int[], r int4range, j jsonb, PRIMARY KEY (a, r, j))
            PARTITION BY HASH (a, r, j);
        CREATE TABLE l1 (id int, e en, PRIMARY KEY (id, e)) PARTITION BY LIST (e);
        CREATE TABLE l1_a PARTITION OF l1 FOR VALUES IN ('a');
        CREATE TABLE r1 (id int, e en, PRIMARY KEY (id, e)) PARTITION BY RANGE (e);
        CREATE TABLE r1_a PARTITION OF r1 FOR VALUES FROM ('a') TO ('c');
        CREATE TABLE o1 (o oid PRIMARY KEY) PARTITION BY RANGE (o)
        """,
    "generated_columns_and_checks": _ENUM
    + """
        CREATE TABLE t (
            id int PRIMARY KEY, e en CHECK (e IN ('a', 'b')) CHECK (e > 'a' OR e = 'a'),
            first text, last text, body text, j jsonb, n numeric, u uuid, o oid CHECK (o > 5),
            email text CHECK (email ~ '@'), a int[] CHECK (array_length(a, 1) < 5),
            full_name text GENERATED ALWAYS AS (coalesce(first, '') || ' ' || upper(last)) STORED,
            tsv tsvector GENERATED ALWAYS AS (setweight(to_tsvector('english', body), 'A')) STORED,
            jt text GENERATED ALWAYS AS (j ->> 'x') STORED,
            h int GENERATED ALWAYS AS (hashtext(body)) STORED,
            nt text GENERATED ALWAYS AS (n::text || u::text || id::text) STORED,
            m text GENERATED ALWAYS AS (md5(body)) STORED,
            is_b bool GENERATED ALWAYS AS (e = 'b') STORED);
        INSERT INTO t (id, e, body, o, j) VALUES (1, 'b', 'walking', 6, '{"x": 1}')
        """,
    "indexes": _ENUM
    + """
        CREATE TABLE t (id int PRIMARY KEY, e en, email text, body text, j jsonb, at timestamptz,
                        u uuid, r int4range, f float8);
        CREATE UNIQUE INDEX ON t (lower(email));
        CREATE UNIQUE INDEX ON t (email) WHERE at IS NULL;
        CREATE UNIQUE INDEX ON t (email) WHERE e = 'a';
        CREATE UNIQUE INDEX ON t ((j ->> 'id'));
        CREATE UNIQUE INDEX ON t (date_trunc('day', at AT TIME ZONE 'UTC'), f);
        CREATE UNIQUE INDEX ON t ((u::text), (id::text));
        CREATE INDEX ON t USING gin (to_tsvector('english', body));
        CREATE INDEX ON t USING gin (j jsonb_path_ops);
        CREATE INDEX ON t (lower(email) text_pattern_ops);
        CREATE INDEX ON t (id) WHERE e = ANY ('{a,b}'::en[]);
        ALTER TABLE t ADD EXCLUDE USING gist (r WITH &&) WHERE (id > 3)
        """,
    "materialized_views": _ENUM
    + """
        CREATE TABLE t (id int PRIMARY KEY, e en, f float8);
        CREATE TABLE u (id int PRIMARY KEY, t int REFERENCES t);
        CREATE VIEW j AS SELECT t.e, u.id FROM t JOIN u ON u.t = t.id;
        CREATE MATERIALIZED VIEW v AS
            SELECT e::text AS e, count(*), max(id)::text FROM j GROUP BY 1;
        CREATE MATERIALIZED VIEW w AS SELECT v.e, t.f::text FROM v JOIN t ON t.e::text = v.e;
        CREATE UNIQUE INDEX ON v (e);
        INSERT INTO t VALUES (1, 'a', 0.5), (2, 'b', 1);
        INSERT INTO u VALUES (1, 1), (2, 1), (3, 2);
        REFRESH MATERIALIZED VIEW v;
        REFRESH MATERIALIZED VIEW w
        """,
    "local_tables": _LOCAL
    + """
        ALTER TABLE t ADD z int;
        ALTER TABLE t ADD y int NOT NULL DEFAULT 5;
        ALTER TABLE t ADD CONSTRAINT c CHECK (v > 0) NOT VALID;
        ALTER TABLE t RENAME CONSTRAINT c TO d;
        ALTER TABLE t ALTER v SET DEFAULT 5, ALTER v SET STATISTICS 5, DROP COLUMN z;
        ALTER TABLE t ALTER w TYPE varchar(9), ALTER x SET STORAGE EXTERNAL;
        CREATE INDEX t_v ON t (v, d);
        CREATE INDEX ON t USING brin (d);
        ALTER TABLE t RENAME v TO vv;
        COMMENT ON TABLE t IS 'x';
        GRANT SELECT ON t TO PUBLIC;
        ALTER TABLE t ENABLE ROW LEVEL SECURITY;
        DROP INDEX t_v;
        ALTER TABLE t DROP CONSTRAINT d, ALTER y DROP NOT NULL;
        ALTER TABLE t SET UNLOGGED
        """,
    "local_table_made_in_the_same_transaction": """
        BEGIN;
        CREATE TABLE t (id int PRIMARY KEY, v int, x text);
        SELECT pgherd.set_local('t');
        CREATE UNIQUE INDEX ON t (x);
        ALTER TABLE t ALTER v SET NOT NULL, ALTER x TYPE varchar;
        COMMIT
        """,
    "local_trees": _LOCAL_TREE
    + """
        CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
        ALTER TABLE p DETACH PARTITION p1;
        CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE b () INHERITS (a);
        SELECT pgherd.set_local('a');
        CREATE TABLE c () INHERITS (a);
        ALTER TABLE c NO INHERIT a
        """,
    "sequences": """
        CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int);
        ALTER TABLE t ALTER id TYPE bigint;
        ALTER TABLE t ALTER id SET MAXVALUE 5000 SET START WITH 1 RESTART WITH 1;
        ALTER TABLE t ALTER id DROP IDENTITY;
        ALTER TABLE t ALTER id TYPE smallint;
        ALTER TABLE t ALTER id ADD GENERATED ALWAYS AS IDENTITY;
        BEGIN;
        CREATE TABLE u (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
        ALTER TABLE u ALTER id TYPE smallint;
        COMMIT;
        CREATE TABLE s (id serial PRIMARY KEY);
        ALTER TABLE s ALTER id TYPE bigint;
        ALTER TABLE s ALTER id TYPE int
        """,
}
