"""The types that columns of random tables have, with a few values each: few, so that they meet.

Every value that only looks the same as another one has a place here: 1.0 and 1.00, 'a' and 'A' of
``citext``, 0 and -0. Types of a schema's own are made by ``OWN_TYPES``.
"""

import random
from dataclasses import dataclass

OWN_TYPES = (
    "CREATE TYPE en AS ENUM ('a', 'b', 'c', 'd')",
    "CREATE DOMAIN dom AS int CHECK (VALUE < 1000)",
    "CREATE DOMAIN domnn AS int NOT NULL",
    "CREATE DOMAIN domen AS en",
    "CREATE TYPE co AS (a int, b text)",
    "CREATE TYPE nest AS (c co, n numeric)",
    "CREATE TYPE fr AS RANGE (subtype = float8)",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type.

    Attributes:
        type: its name in SQL.
        values: as SQL.
        key: it can be a key.
        hashed: PostgreSQL lets it be a hash partition key.
        computed: values that cannot be read again from their text, or are read as others.
    """

    type: str
    values: tuple[str, ...]
    key: bool = True
    hashed: bool = True
    computed: tuple[str, ...] = ()


_NUMBERS = tuple(map(str, range(1, 9)))
INT = Kind("int", _NUMBERS)
TEXT = Kind("text", ("'a'", "'b'", "'A'", "''", "'a '", "repeat('long ', 600)"))
KINDS = (
    INT,
    TEXT,
    Kind("bigint", (*_NUMBERS[:5], "9223372036854775807")),
    Kind("smallint", _NUMBERS),
    Kind("numeric", ("1", "1.0", "1.00", "-2.5", "'NaN'", "1e30")),
    Kind("numeric(8,2)", ("1", "1.005", "22")),
    Kind("varchar(6)", ("'a'", "'b'", "'abc'")),
    Kind("char(4)", ("'a'", "'a  '", "'b'")),
    Kind('"char"', ("'a'", "'b'", "'\\\\351'"), hashed=False),
    Kind("bool", ("true", "false")),
    Kind("date", ("'2024-02-29'", "'2023-12-31'", "'infinity'")),
    Kind("timestamptz", ("'2024-01-01 12:00+00'", "'2024-01-01 13:00+01'", "'2020-06-01Z'")),
    Kind("time", ("'12:00'", "'24:00'")),
    Kind(
        "interval",
        ("'1 mon'", "'30 days'", "'720 hours'", "'-1 day 01:00'"),
        computed=("make_interval(months => -2147483647) - '1 mon'",),
    ),
    Kind(
        "timetz",
        ("'10:00+01'", "'09:00+00'"),
        computed=("timezone(interval '400 hours', timetz '00:00+00')",),
    ),
    Kind("uuid", tuple(f"'{str(n) * 8}-0000-0000-0000-000000000000'" for n in range(1, 6))),
    Kind("bytea", ("'\\x61'::bytea", "'\\x'::bytea", "'\\xff00'::bytea")),
    Kind("float8", ("0.1::float8+0.2", "0.3", "'-0'::float8", "'0'::float8", "'NaN'")),
    Kind("float4", ("0.1", "1e10", "'infinity'")),
    Kind("inet", ("'10.0.0.1'", "'10.0.0.1/24'")),
    Kind("citext", ("'a'", "'A'", "'b'")),
    Kind("en", ("'a'", "'b'", "'c'"), hashed=True),
    Kind("domen", ("'a'", "'b'")),
    Kind("dom", _NUMBERS),
    Kind("int4range", ("'[1,3)'", "'[2,5)'", "'empty'", "'[7,)'")),
    Kind("fr", ("'[1,2)'", "'(1,2]'")),
    Kind("int[]", ("'{1,2}'", "'{}'", "'{{1},{2}}'", "'{NULL}'")),
    Kind("dom[]", ("'{1}'", "'{1,2}'")),
    Kind("en[]", ("'{a}'", "'{b,a}'")),
    Kind("co", ("ROW(1,'x')", "ROW(NULL,'y')", "ROW(2,NULL)"), hashed=False),
    Kind("co[]", ("ARRAY[ROW(1,'x')::co]", "'{}'"), hashed=False),
    Kind("nest", ("ROW(ROW(1,'x'),1.0)", "NULL"), key=False),
    Kind("jsonb", ("'{\"a\": 1.0}'", "'{\"a\": 1}'", "'[]'")),
    Kind("json", ("'{\"a\": 1}'", "'{\"a\":1}'"), key=False),
    Kind(
        "xml",
        ("'<a/>'", "'<a></a>'"),
        key=False,
        computed=("xmlconcat('<!DOCTYPE a><a/>', '<b/>')",),
    ),
    Kind("circle", ("'<(0,0),1>'",), key=False, computed=("circle(point(0, 0), -1)",)),
    Kind("domnn", _NUMBERS),
    Kind("point", ("'(1,2)'", "'(1,3)'"), key=False),
    Kind("money", ("1.5", "2"), hashed=False),
    Kind("bit(4)", ("B'0101'", "B'1111'"), hashed=False),
    Kind("tsvector", ("'a b'", "'a c'"), hashed=False),
    Kind("name", ("'a'", "'b'")),
    Kind("oid", ("1", "2")),
    Kind("regclass", ("'pg_class'", "'pg_type'"), key=False),
)


def any_kind(chance: random.Random) -> Kind:
    """One of all."""
    return chance.choice(KINDS)


def key_kind(chance: random.Random) -> Kind:
    """One that can be a key; often a plain number."""
    if chance.random() < 0.45:
        return INT
    return chance.choice([kind for kind in KINDS if kind.key])


def computed(chance: random.Random, kind: Kind) -> str:
    """A value as SQL; now and then one that cannot travel as text."""
    if kind.computed and chance.random() < 0.3:
        return chance.choice(kind.computed)
    return literal(chance, kind, null=0.1)


def literal(chance: random.Random, kind: Kind, *, null: float = 0.0) -> str:
    """A value as SQL; sometimes NULL."""
    return "NULL" if chance.random() < null else chance.choice(kind.values)
