"""The transactions of the workloads, one function for each, and the tables they run on.

A body gets an attempt that has not begun and a source of chance of its own. What it finds wrong
by itself, because no checker knows the meaning of a balance, goes to ``surprises``.
"""

import functools
import random
from dataclasses import dataclass, replace

from checkers.history import Key, Read, ReadList, Scan, Write

from workloads.client import READ_COMMITTED, REPEATABLE_READ, Attempt, Body

ACCOUNTS = 24
BALANCE = 1000
COUNTERS = 8
_MARKS = 12
_LISTS_AT_A_TIME = 12
_APPENDS_PER_LIST = 20


@dataclass(frozen=True, slots=True)
class Workload:
    """Tables, how they are filled, and what clients do.

    Attributes:
        fill: the first transaction, recorded like all others.
        finals: by table of the history, the query for its final rows: id, then value or list.
    """

    ddl: str
    body: Body
    finals: dict[str, str]
    fill: Body


async def nothing(attempt: Attempt, chance: random.Random) -> None:
    """For tables that begin empty."""
    await attempt.begin()


# ---- list-append: for the checker that infers the order


def _list(attempt: Attempt, chance: random.Random) -> Key:
    """One of a few lists; new ones come in as others grow, so none gets too long to read."""
    oldest = len(attempt.recorder.tokens) // _APPENDS_PER_LIST
    return "list", oldest + chance.randrange(_LISTS_AT_A_TIME)


async def append_and_read(attempt: Attempt, chance: random.Random, *, there: bool = False) -> None:
    """A few appends and reads; now and then one statement at READ COMMITTED that does both."""
    if chance.random() < 0.2:
        await attempt.begin(READ_COMMITTED)
        key = _list(attempt, chance)
        attempt.saw(ReadList(key, await attempt.append(key, there=there)))
        return
    await attempt.begin()
    for _ in range(chance.randint(1, 4)):
        key = _list(attempt, chance)
        if chance.random() < 0.5:
            await attempt.append(key, there=there)
        else:
            await attempt.read_list(key)


async def read_all_lists(attempt: Attempt, chance: random.Random) -> None:
    """Read every list in one transaction, so that everything that was appended has been read."""
    await attempt.begin()
    for number, elements in await attempt.rows("SELECT id, elements FROM list"):
        attempt.saw(ReadList(("list", number), tuple(elements)))


LIST_APPEND = Workload(
    "CREATE TABLE list (id int PRIMARY KEY, elements int[] NOT NULL)",
    append_and_read,
    {"list": "SELECT id, elements FROM list"},
    nothing,
)
LIST_APPEND_WITHOUT_KEY = Workload(
    "CREATE TABLE list (id int NOT NULL, elements int[] NOT NULL);"
    "INSERT INTO list SELECT g, '{}' FROM generate_series(0, 999) g",
    functools.partial(append_and_read, there=True),
    {"list": "SELECT id, elements FROM list WHERE elements <> '{}'"},
    nothing,
)


# ---- bank: what is moved is neither lost nor made


async def open_accounts(attempt: Attempt, chance: random.Random) -> None:
    """Give every account the same."""
    await attempt.begin()
    for number in range(ACCOUNTS):
        await attempt.insert(("account", number), ", %s", BALANCE)


async def audit(attempt: Attempt, chance: random.Random) -> None:
    """Look at all accounts at once."""
    await attempt.begin()
    rows = await attempt.rows("SELECT id, value, balance FROM account")
    attempt.saw(Scan("account", tuple((number, value) for number, value, _ in rows)))
    if (total := sum(balance for _, _, balance in rows)) != ACCOUNTS * BALANCE:
        attempt.recorder.surprises.append(f"all accounts together: {total}")


async def transfer(attempt: Attempt, chance: random.Random) -> None:
    """Move money between two accounts."""
    await attempt.begin(chance.choice((READ_COMMITTED, REPEATABLE_READ)))
    amount = chance.randint(1, 9)
    for number, moved in zip(chance.sample(range(ACCOUNTS), 2), (amount, -amount), strict=True):
        await attempt.write(("account", number), ", balance = balance + %s", moved)


async def transfer_or_audit(attempt: Attempt, chance: random.Random) -> None:
    """One or the other."""
    await (audit if chance.random() < 0.4 else transfer)(attempt, chance)


BANK = Workload(
    "CREATE TABLE account (id int PRIMARY KEY, value int NOT NULL, balance int NOT NULL)",
    transfer_or_audit,
    {"account": "SELECT id, value FROM account"},
    open_accounts,
)
BANK_WITHOUT_KEY = replace(
    BANK, ddl="CREATE TABLE account (id int NOT NULL, value int NOT NULL, balance int NOT NULL)"
)


# ---- long fork: writers that have nothing to do with each other, readers of all they write


async def make_marks(attempt: Attempt, chance: random.Random) -> None:
    """One row for every mark."""
    await attempt.begin()
    for number in range(_MARKS):
        await attempt.insert(("mark", number))


async def mark_or_look(attempt: Attempt, chance: random.Random) -> None:
    """Write one row blindly, or read all."""
    await attempt.begin()
    if chance.random() < 0.5:
        await attempt.write(("mark", chance.randrange(_MARKS)))
    else:
        await attempt.scan("mark")


LONG_FORK = Workload(
    "CREATE TABLE mark (id int PRIMARY KEY, value int NOT NULL)",
    mark_or_look,
    {"mark": "SELECT id, value FROM mark"},
    make_marks,
)


# ---- lost update: read, add one in the client, write


async def make_counters(attempt: Attempt, chance: random.Random) -> None:
    """Counters at zero."""
    await attempt.begin()
    for number in range(COUNTERS):
        await attempt.insert(("counter", number), ", 0")


async def count(attempt: Attempt, chance: random.Random) -> None:
    """Increment a counter by what was read, or at READ COMMITTED by what is there."""
    key = "counter", chance.randrange(COUNTERS)
    if chance.random() < 0.3:
        await attempt.begin(READ_COMMITTED)
        await attempt.write(key, ", n = n + 1")
        return
    await attempt.begin()
    await attempt.read(key)
    n = await attempt.value("SELECT n FROM counter WHERE id = %s", key[1])
    await attempt.write(key, ", n = %s", n + 1)


LOST_UPDATE = Workload(
    "CREATE TABLE counter (id int PRIMARY KEY, value int NOT NULL, n int NOT NULL)",
    count,
    {"counter": "SELECT id, value FROM counter"},
    make_counters,
)


# ---- unique keys: whoever takes a name first has it


async def claim(attempt: Attempt, chance: random.Random) -> None:
    """Take a name that others try to take at the same time, by its own primary key."""
    await attempt.begin(chance.choice((READ_COMMITTED, REPEATABLE_READ)))
    key = "claim", attempt.number // 3 + chance.randrange(3)  # new names for ever
    value = next(attempt.recorder.values)
    await attempt.rows("INSERT INTO claim (id, name) VALUES (%s, %s)", value, key[1])
    attempt.saw(Read(key, None))
    attempt.saw(Write(key, value))


UNIQUE_KEYS = Workload(
    "CREATE TABLE claim (id int PRIMARY KEY, name int NOT NULL UNIQUE)",
    claim,
    {"claim": "SELECT name, id FROM claim"},
    nothing,
)


# ---- foreign keys: no child without its parent, in any snapshot of any node

ORPHANS = """SELECT count(*) FROM child c
             WHERE NOT EXISTS (SELECT FROM parent p WHERE p.id = c.parent)"""


async def family(attempt: Attempt, chance: random.Random) -> None:
    """Make or delete a parent, make a child, or look for orphans."""
    await attempt.begin(chance.choice((READ_COMMITTED, REPEATABLE_READ)))
    parent = attempt.number // 40 + chance.randrange(4)
    what = chance.random()
    if what < 0.2:
        if (orphans := await attempt.value(ORPHANS)) != 0:
            attempt.recorder.surprises.append(f"{orphans} orphans")
        return
    value = next(attempt.recorder.values)
    if what < 0.4:
        await attempt.rows("INSERT INTO parent VALUES (%s) ON CONFLICT DO NOTHING", parent)
    elif what < 0.6:
        await attempt.rows("DELETE FROM parent WHERE id = %s", parent)
    else:
        await attempt.rows("INSERT INTO child VALUES (%s, %s)", value, parent)
        attempt.saw(Write(("child", value), value))


FOREIGN_KEYS = Workload(
    "CREATE TABLE parent (id int PRIMARY KEY);"
    "CREATE TABLE child (id int PRIMARY KEY, parent int NOT NULL REFERENCES parent)",
    family,
    {"child": "SELECT id, id FROM child"},
    nothing,
)
