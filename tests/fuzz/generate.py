"""A random case from a seed: a schema, then transactions from several members, some at once."""

import random
from collections.abc import Iterator

from fuzz import statements
from fuzz.case import APART, TOGETHER, Case, Step
from fuzz.rows import rows
from fuzz.schemas import Schema, draw
from fuzz.servers import MEMBERS

_TRANSACTIONS = (4, 14)
_TOGETHER = 0.3
"""How many cases end with transactions at once: from there on no plain server can follow."""


def case(seed: int) -> Case:
    """The case of a seed, always the same."""
    chance = random.Random(seed)
    schema = draw(chance)
    steps = [Step(act=APART)] if schema.local else []
    steps.append(Step(MEMBERS[0], tuple(schema.statements)))
    steps += [_filled(chance, schema) for _ in range(3)]
    for _ in range(chance.randint(*_TRANSACTIONS)):
        steps += _one(chance, schema)
    if chance.random() < _TOGETHER:
        steps += _several(chance, schema)
    return Case(f"seed {seed}", tuple(steps))


def _filled(chance: random.Random, schema: Schema) -> Step:
    """Rows to begin with."""
    block = ["BEGIN", *(rows(chance, schema) for _ in range(4)), "COMMIT"]
    return Step(chance.choice(MEMBERS), tuple(block), guarded=True)


def _one(chance: random.Random, schema: Schema) -> Iterator[Step]:
    """A transaction by itself, or what happens to one member alone."""
    member, what = chance.choice(MEMBERS), chance.random()
    if what < 0.06:
        yield _churn(chance, schema, member)
    elif what < 0.12:
        yield Step(member, (statements.setting(chance),))
    elif what < 0.16:
        yield Step(member, ("SELECT count(nextval('sq')) FROM generate_series(1, 500)",))
    elif what < 0.30:
        yield Step(member, (statements.statement(chance, schema),))
    else:
        block = tuple(statements.transaction(chance, schema))
        yield Step(member, block, guarded=chance.random() < 0.7)


def _churn(chance: random.Random, schema: Schema, member: str) -> Step:
    """Change the order in which one member keeps its rows, and no row."""
    table = chance.choice(schema.tables).name
    again = f"UPDATE {table} SET t = t || 'churn'"
    return Step(member, ("BEGIN", again, again, "ROLLBACK", f"VACUUM {table}"))


def _several(chance: random.Random, schema: Schema) -> Iterator[Step]:
    """Transactions that overlap, on two or three members, step by step in turns."""
    yield Step(act=APART)
    for _ in range(chance.randint(1, 3)):
        yield Step(act=TOGETHER)
        members = chance.sample(MEMBERS, chance.randint(2, 3))
        blocks = {
            member: [one for one in statements.transaction(chance, schema) if "TO s" not in one]
            for member in members
        }
        while any(blocks.values()):
            member = chance.choice([one for one in members if blocks[one]])
            count = min(len(blocks[member]), chance.randint(1, 3))
            said, blocks[member] = blocks[member][:count], blocks[member][count:]
            yield Step(member, tuple(said), "c", guarded=True)
