"""A case: what is said to which member in which session, as SQL that a person can read and replay.

    -- case: a name
    -- on n1
    CREATE TABLE t (id int PRIMARY KEY);
    -- on n1 a
    BEGIN;
    INSERT INTO t VALUES (1);
    -- on n2 at once
    DELETE FROM t;
    -- on n1 a
    COMMIT;

A *step* is what follows an ``-- on`` line: statements of one session, one after the other. ``a``
names a session; without a name it is the member's own. ``at once`` begins the step and does not
wait for its end; ``guarded`` puts a savepoint before each statement, as psql's ON_ERROR_ROLLBACK
does; ``as ROLE`` and ``to postgres`` connect as another role or to another database.
``-- together`` waits for all steps, and until every member has what was committed. ``-- apart``
switches the comparison with a plain PostgreSQL off from there on. A statement ends with a line that
ends in ``;`` and in no dollar-quoted text. Nothing here runs anything.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_ON = re.compile(r"-- on (n[123]|all)(?: (?!as |to |at once|guarded)(\w+))?(.*)")
_QUOTE = re.compile(r"\$\w*\$")
_BEGINS = re.compile(r"(BEGIN|START TRANSACTION)\b", re.IGNORECASE)
_ENDS = re.compile(
    r"(COMMIT|END|ABORT|ROLLBACK)(?! +(TO|PREPARED))( +(WORK|TRANSACTION))?\s*;?\s*$", re.IGNORECASE
)
EVERYBODY = "all"
TOGETHER, APART = "together", "apart"


class CaseError(Exception):
    """A file is no case; the message says where."""


@dataclass(frozen=True, slots=True)
class Step:
    """Statements of one session.

    Attributes:
        member: ``n1``, ``n2``, ``n3``; or ``all``, for one after the other.
        statements: without their semicolons.
        session: its name; empty for the member's own.
        at_once: nobody waits for its end.
        guarded: a savepoint before each statement of a transaction.
        role: who says it; empty for the owner of the database.
        database: where; empty for the herd's.
        act: ``together`` or ``apart``: no statements, see above.
    """

    member: str = ""
    statements: tuple[str, ...] = ()
    session: str = ""
    at_once: bool = False
    guarded: bool = False
    role: str = ""
    database: str = ""
    act: str = ""

    def text(self) -> str:
        """As it stands in a file."""
        if self.act:
            return f"-- {self.act}\n"
        words = [
            f"-- on {self.member}",
            *([self.session] if self.session else []),
            *(["at once"] if self.at_once else []),
            *(["guarded"] if self.guarded else []),
            *([f"as {self.role}"] if self.role else []),
            *([f"to {self.database}"] if self.database else []),
        ]
        return "\n".join([" ".join(words), *(f"{one};" for one in self.statements), ""])


@dataclass(frozen=True, slots=True)
class Case:
    """A sequence of steps, which finds all members in an empty schema.

    Attributes:
        name: of the file, or the seed.
        steps: in their order.
    """

    name: str
    steps: tuple[Step, ...]

    def text(self) -> str:
        """As it stands in a file."""
        return "".join([f"-- case: {self.name}\n", *(step.text() for step in self.steps)])

    def with_steps(self, steps: tuple[Step, ...]) -> "Case":
        """The same with other steps."""
        return replace(self, steps=steps)


def parse(text: str) -> list[Case]:
    """The cases of a file.

    Raises:
        CaseError: it holds something else.
    """
    cases = []
    for part in re.split(r"^-- case: ", text, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        cases.append(Case(name.strip(), tuple(_steps(name, body))))
    return cases


def _steps(name: str, body: str) -> Iterator[Step]:
    parts = re.split(r"^(?=-- (?:on |together$|apart$))", body, flags=re.MULTILINE)
    if parts[0].strip() and not all(line.startswith("--") for line in parts[0].splitlines()):
        raise CaseError(f"{name}: statements before the first «-- on»")
    for part in parts[1:]:
        head, _, rest = part.partition("\n")
        if head[3:] in (TOGETHER, APART):
            yield Step(act=head[3:])
            continue
        found = _ON.fullmatch(head)
        if found is None:
            raise CaseError(f"{name}: {head}")
        member, session, more = found.groups()
        role = re.search(r" as (\w+)", more)
        database = re.search(r" to (\w+)", more)
        yield Step(
            member,
            tuple(_statements(name, rest)),
            session or "",
            " at once" in more,
            " guarded" in more,
            role[1] if role else "",
            database[1] if database else "",
        )


def _statements(name: str, text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if not lines and (not line.strip() or line.startswith("--")):
            continue
        lines.append(line)
        whole = "\n".join(lines)
        if line.rstrip().endswith(";") and len(_QUOTE.findall(whole)) % 2 == 0:
            yield whole.rstrip().removesuffix(";")
            lines = []
    if lines:
        raise CaseError(f"{name}: no end of: {lines[0]}")


def begins(statement: str) -> bool:
    """Whether it begins a transaction block."""
    return _BEGINS.match(statement.lstrip()) is not None


def ends(statement: str) -> bool:
    """Whether it ends one."""
    return _ENDS.match(statement.lstrip()) is not None


def units(statements: tuple[str, ...], *, inside: bool) -> Iterator[tuple[str, ...]]:
    """Cut a step into transactions: single statements, and blocks, which a step may leave open.

    Args:
        statements: of a step.
        inside: the session is in a block already.
    """
    unit: list[str] = []
    for statement in statements:
        unit.append(statement)
        inside = (inside or begins(statement)) and not ends(statement)
        if not inside:
            yield tuple(unit)
            unit = []
    if unit:
        yield tuple(unit)
