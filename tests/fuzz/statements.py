"""Random statements: rows, commands, requests, what is around them; and transactions of them."""

import random
from collections.abc import Iterator

from fuzz.commands import command
from fuzz.extremes import SESSION_SETTINGS
from fuzz.rows import rows
from fuzz.schemas import Schema


def statement(chance: random.Random, schema: Schema) -> str:
    """One of any sort."""
    weights = (66, 18, 5, 4, 7)
    (sort,) = chance.choices((rows, command, request, around, compound), weights)
    return sort(chance, schema)


def request(chance: random.Random, schema: Schema) -> str:
    """What is asked of pgherd."""
    forms = [
        f"SELECT pgherd.setval('sq', {chance.randint(1, 500)})",
        "SELECT nextval('sq') IS NOT NULL",
    ]
    if schema.local:
        name = chance.choice(schema.tables).name
        extra = f"extra{chance.randint(1, 3)}"
        forms += [
            f"SELECT pgherd.set_{how}('{which}')"
            for how in ("local", "replicated")
            for which in (name, extra)
        ]
    return chance.choice(forms)


def around(chance: random.Random, schema: Schema) -> str:
    """What changes no row by itself."""
    table = chance.choice(schema.tables)
    return chance.choice(
        (
            "SET CONSTRAINTS ALL IMMEDIATE",
            "SET CONSTRAINTS ALL DEFERRED",
            "CLOSE ALL",
            f"SELECT count(*) FROM {table.name} WHERE v = {chance.randint(1, 5)}",
            setting(chance, local=True),
            setting(chance, local=True),
            f"LOCK TABLE {table.name} IN SHARE ROW EXCLUSIVE MODE",
            "RESET ALL",
        )
    )


def setting(chance: random.Random, *, local: bool = False) -> str:
    """A setting at an extreme."""
    name = chance.choice(sorted(SESSION_SETTINGS))
    value = chance.choice(SESSION_SETTINGS[name])
    return f"SET {'LOCAL ' if local else ''}{name} = '{value}'"


def compound(chance: random.Random, schema: Schema) -> str:
    """Statements inside a DO block, some of which fail inside EXCEPTION."""
    first, second = (_quoted(rows(chance, schema)) for _ in range(2))
    inner = _quoted(command(chance, schema))
    return chance.choice(
        (
            f"DO $do$ BEGIN {first} BEGIN {inner} RAISE division_by_zero; "
            f"EXCEPTION WHEN division_by_zero THEN NULL; END; {second} END $do$",
            "DO $do$ BEGIN BEGIN EXECUTE 'CREATE TABLE told (i int)'; "
            f"EXCEPTION WHEN duplicate_table THEN NULL; END; {first} END $do$",
            f"DO $do$ BEGIN {first} {inner} {second} END $do$",
            f"DO $do$ BEGIN BEGIN {first} {second} RAISE division_by_zero; "
            f"EXCEPTION WHEN division_by_zero THEN NULL; END; {second} END $do$",
        )
    )


def _quoted(statement: str) -> str:
    return f"EXECUTE $in${statement}$in$;"


def transaction(chance: random.Random, schema: Schema) -> Iterator[str]:
    """A transaction block; some statements between savepoints, some of those rolled back."""
    level = chance.choice(("", "", " ISOLATION LEVEL REPEATABLE READ"))
    yield f"BEGIN{level}"
    open_points: list[str] = []
    for _ in range(chance.randint(1, 6)):
        draw = chance.random()
        if draw < 0.18:
            open_points.append(f"s{chance.randint(1, 3)}")
            yield f"SAVEPOINT {open_points[-1]}"
        elif draw < 0.32 and open_points:
            yield f"ROLLBACK TO {open_points[-1]}"
        elif draw < 0.36 and open_points:
            yield f"RELEASE {open_points.pop()}"
        yield statement(chance, schema)
        if chance.random() < 0.25:  # the same rows again
            yield rows(chance, schema)
    if open_points and chance.random() < 0.5:
        yield f"ROLLBACK TO {open_points[-1]}"
    yield "ROLLBACK" if chance.random() < 0.05 else "COMMIT"
