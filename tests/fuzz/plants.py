"""The mistakes of the border to PostgreSQL that were mended, and how each is made again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patch:
    """A text of the sidecar's source, as it is, and as it was.

    Attributes:
        file: below the package.
        mended: as it is; there exactly once.
        broken: in its place.
    """

    file: str
    mended: str
    broken: str


@dataclass(frozen=True, slots=True)
class Plant:
    """A mistake.

    Attributes:
        name: its number, and how the names of its remembered cases begin.
        mistake: what was wrong.
        patches: how it is made again.
    """

    name: str
    mistake: str
    patches: tuple[Patch, ...]


_ROWS = "pg/sql/040_command_rows.sql"
_END = "pg/sql/044_command_end.sql"
_RULES = "pg/sql/042_command_rules.sql"
_CERTAIN = "pg/sql/045_expressions.sql"
_GENERATE = "pg/sql/032_generate.sql"

PLANTS: tuple[Plant, ...] = (
    Plant(
        "a01",
        "captured rows are ordered by cmin, and changed inside a savepoint",
        (
            Patch(
                _ROWS,
                "FROM pgherd.capture_%s c WHERE c.xid = x AND c.seq >= first AND c.seq > 0\n",
                "FROM (SELECT o.xid, 1 + o.cmin::text::int8 AS seq, o.base, o.tab, o.keys,\n"
                " o.pks, o.recs FROM pgherd.capture_%s o WHERE o.seq > 0) c\n"
                " WHERE c.xid = x AND c.seq >= first\n",
            ),
            Patch(
                "pg/sql/020_hook.sql",
                "AND c.tab NOT IN ('sentinel', '\"\"') AND c.seq > $2$f$",
                "AND c.tab NOT IN ('sentinel', '\"\"') AND 1 + c.cmin::text::int8 > $2$f$",
            ),
            Patch(
                _ROWS,
                "        PERFORM pgherd.put(x, since, 'sentinel', 'settled', '{0}', '{}');\n",
                "        EXECUTE format($q$UPDATE pgherd.capture_%s SET pks = '{}', recs = '{}'"
                " WHERE xid = $1 AND seq > $2 AND tab NOT IN ('sentinel', '\"\"')$q$,"
                " pgherd.capture_side(x)) USING x, since;\n",
            ),
        ),
    ),
    Plant(
        "a02",
        "members execute a command with the same stack, some calls deeper",
        (Patch("agent/apply/applier.py", "IN REVERSE 48 .. 1 LOOP", "IN REVERSE 0 .. 1 LOOP"),),
    ),
    Plant(
        "a03",
        "rows go to partitions by a hash of oids",
        (Patch(_RULES, " WHERE p.partstrat = 'h'\n", " WHERE false AND p.partstrat = 'h'\n"),),
    ),
    Plant(
        "a04",
        "generated columns may read system columns",
        (
            Patch(
                _CERTAIN,
                "       AND tree !~ ':varattno -' -- a system column: tableoid, ctid, xmin\n",
                "",
            ),
        ),
    ),
    Plant(
        "a05",
        "INCLUDE columns are taken for the key",
        (
            Patch(
                "pg/sql/031_columns.sql",
                "(i.indkey::int2[])[0:i.indnkeyatts - 1] FROM pg_index i WHERE i.indexrelid",
                "i.indkey::int2[] FROM pg_index i WHERE i.indexrelid",
            ),
        ),
    ),
    Plant(
        "a06",
        "a command inside a statement is taken for one between statements",
        (
            Patch(
                "pg/sql/047_open_points.sql",
                "IF pg_trigger_depth() = 0 AND position(E'\\n' IN context) = 0 THEN",
                "IF true THEN",
            ),
        ),
    ),
    Plant(
        "a07",
        "REFRESH does not conflict with writers of the tables that it reads",
        (
            Patch(
                _END,
                "PERFORM pgherd.put_tables_read(",
                "PERFORM pg_catalog.concat(",
            ),
        ),
    ),
    Plant(
        "a08",
        "commands may look at the rows of local tables",
        (Patch(_END, "    PERFORM pgherd.check_local_tables(before -> 'local');\n", ""),),
    ),
    Plant(
        "a09",
        "a local table may become a partition of a replicated one",
        (
            Patch(_END, "    PERFORM pgherd.check_marks(effect.rels);\n", ""),
            Patch(_END, "    PERFORM pgherd.check_local_tables(before -> 'local');\n", ""),
        ),
    ),
    Plant(
        "a10",
        "values are compressed in one way only where they are applied",
        (Patch("agent/apply/rowwriter.py", '("pglz", "lz4")', '("pglz", "pglz")'),),
    ),
    Plant(
        "a11",
        "the expressions of indexes are not judged",
        (
            Patch(
                _RULES,
                "FROM pg_index i WHERE i.indexprs IS NOT NULL OR i.indpred IS NOT NULL;",
                "FROM pg_index i WHERE false;",
            ),
        ),
    ),
    Plant(
        "a12",
        "the first quotation mark at the end of a line ends a statement",
        (
            Patch(
                "pg/sql/047_statement_text.sql",
                "IF cardinality(parts) = 2 THEN",
                "IF cardinality(parts) >= 2 THEN",
            ),
        ),
    ),
    Plant(
        "a13",
        "foreign keys of single partitions are not certified",
        (
            Patch(
                "pg/sql/031_columns.sql",
                "WHERE f.conrelid IN (SELECT t.relid FROM pgherd.partitions(root) t) AND f.contype",
                "WHERE f.conrelid = root AND f.contype",
            ),
        ),
    ),
    Plant(
        "a14",
        "a parent's end is certified by what was there when it was captured",
        (
            Patch(
                _GENERATE,
                "RETURN CASE WHEN kept.xid = x AND kept.seq <= at THEN kept.base ELSE 0 END;",
                "RETURN pgherd.last_gid();",
            ),
        ),
    ),
    Plant(
        "a15",
        "a command may stand between rows that violate a deferrable key",
        (Patch(_ROWS, "        IF doubled THEN\n", "        IF false THEN\n"),),
    ),
    Plant(
        "a16",
        "columns may have the names of variables",
        (Patch("pg/sql/033_final_state.sql", "CASE WHEN $3 AND NOT", "CASE WHEN erasing AND NOT"),),
    ),
    Plant(
        "a17",
        "our tables are read with the user's row security",
        (
            Patch(
                "pg/sql/010_schema.sql",
                "LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER SET search_path",
                "LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path",
            ),
        ),
    ),
    Plant(
        "b01",
        "who changes a row type does not exclude the writers of tables that hold it",
        (Patch(_END, " || pgherd.holders_of_rows(pgherd.trees_of(rels))", ""),),
    ),
    Plant(
        "b02",
        "a detached partition is captured under the name of the table that it was of",
        (Patch(_END, " || pgherd.former_partitions()", ""),),
    ),
)
