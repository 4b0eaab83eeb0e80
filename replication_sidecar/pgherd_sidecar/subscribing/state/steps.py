"""Changes of the herd's log as changes of a subscriber's tables, and what DDL means for them.

Pure.
"""

import json
import re
from collections.abc import Collection, Mapping

from pgherd_sidecar.client.stream.changes import LoggedChange, Values
from pgherd_sidecar.tables.folding import Emptied, RowChange, Step
from pgherd_sidecar.tables.model import SourceTable
from pgherd_sidecar.tables.values import UNCHANGED, Row

_HARMLESS = re.compile(
    r"\s*(?!DROP\s+(FUNCTION|PROCEDURE|(MATERIALIZED\s+)?VIEW)\b.*\bCASCADE\b)"
    r"(CREATE|COMMENT|GRANT|REVOKE|REINDEX|SECURITY\s+LABEL|ALTER\s+DEFAULT"
    r"|(ALTER|DROP)\s+(INDEX|STATISTICS|POLICY|TRIGGER|(MATERIALIZED\s+)?VIEW|FUNCTION|PROCEDURE))\b",
    re.IGNORECASE | re.DOTALL,
)
"""A unique index may become what rows are told by: the next change of a row shows that. What is
dropped with CASCADE may take columns with it."""
_OF_TYPES = re.compile(r"\s*(ALTER|DROP)\s+(TYPE|DOMAIN)\b", re.IGNORECASE)
_ACTS = {"set_local", "set_replicated"}
"""The log has the rows of a table no more, or has not had them."""
FIRST_OF_USERS = 16384
"""Types with smaller oids are PostgreSQL's own, and nobody alters them."""
_ADDS = re.compile(
    r"""\s*ALTER\s+TABLE\s+(ONLY\s+)?\S+\s+ADD\s+(COLUMN\s+)?(?P<rest>[\w\s().,"\[\]]+);?\s*""",
    re.IGNORECASE,
)
_MORE = re.compile(
    r"\b(DEFAULT|NOT|NULL|GENERATED|COLLATE|CHECK|REFERENCES|PRIMARY|FOREIGN|UNIQUE|CONSTRAINT|EXCLUDE"
    r"|ADD|DROP|ALTER|USING|\w*SERIAL\w*)\b",
    re.IGNORECASE,
)
_TEXT_MAX = 200


class AlteredError(Exception):
    """A transaction has altered a table.

    Attributes:
        gid: of the transaction; everything before it can be applied.
        extended: the table that has got a column more by it, and nothing else, as far as its words
            tell.
        change: the command; None if it was a row that showed it.
    """

    def __init__(
        self,
        gid: int,
        what: str,
        extended: str | None = None,
        change: LoggedChange | None = None,
    ) -> None:
        super().__init__(what)
        self.gid = gid
        self.extended = extended
        self.change = change


def step_of(change: LoggedChange, table: SourceTable) -> Step:
    """What a change of a row means for the table.

    Args:
        change: of this table, and no command.
        table: its columns and key, as the subscriber has it.

    Raises:
        AlteredError: the table's columns or key are other ones at that GID.
    """
    if change.op == "truncate":
        return Emptied((table.name,))
    key, values = change.key or {}, change.values or {}
    old = _in_order(key, table.key_names)
    if len(key) != len(old) or UNCHANGED in old:
        raise AlteredError(change.gid, f"the key of {table.name} is another one")
    if change.op == "delete":
        return RowChange(table.name, old, None)
    new = _in_order(values, table.names)
    is_insert, untold = change.op == "insert", new.count(UNCHANGED)
    if len(values) + untold != len(new) or (is_insert and untold):
        raise AlteredError(change.gid, f"the columns of {table.name} are other ones")
    return RowChange(table.name, None if is_insert else old, new)


def _in_order(values: Values, names: tuple[str, ...]) -> Row:
    """The values of columns."""
    if tuple(values) == names:  # nearly always, and quick
        return tuple(values.values())
    return tuple([values.get(name, UNCHANGED) for name in names])


def suspicion(command: str, tables: Mapping[str, SourceTable]) -> tuple[str, bool] | None:
    """Whether a command may have altered one of the tables: its text, and whether it surely has.

    Args:
        command: as the log has it.
        tables: by name.

    Returns:
        None where it has not. Where it is not sure, the catalog tells whether all are there.
    """
    said = json.loads(command)
    text = said.get("sql")
    if said.get("act") in _ACTS:
        text = f"pgherd.{said['act']}({said['object']!r})"
    if text is None or said.get("leaves_tables"):
        return None
    short = " ".join(text.split())[:_TEXT_MAX]
    if not set(said.get("gone", ())).isdisjoint(tables):
        return short, True
    if _HARMLESS.match(text) is not None:
        return None
    if _concerns(said.get("rels", ()), text, tables):
        return short, True
    return (short, False) if said.get("everything") else None


def _concerns(rels: Collection[str], text: str, tables: Mapping[str, SourceTable]) -> bool:
    """Is one of the tables among the command's relations, or of a type that it is about?"""
    has_own = any(
        column.oid >= FIRST_OF_USERS for table in tables.values() for column in table.columns
    )
    is_altered = not set(rels).isdisjoint(tables)
    return is_altered or (has_own and _OF_TYPES.match(text) is not None)


def extended(command: str, tables: Mapping[str, SourceTable]) -> str | None:
    """The table to which a command only adds a column that is NULL in all rows, by its words.

    Args:
        command: as the log has it.
        tables: by name.
    """
    said = json.loads(command)
    rels = said.get("rels", ())
    found = _ADDS.fullmatch(said.get("sql", ""))
    if found is None or _MORE.search(found["rest"]) or len(rels) != 1 or rels[0] not in tables:
        return None
    name: str = rels[0]
    return name
