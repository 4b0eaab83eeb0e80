"""Reasons for an abort, in words for a client. Free of IO."""

from pgherd_sidecar.core.certification.certifier import AbortReason, Conflict
from pgherd_sidecar.core.replication.entries import FLAG_PIECES, pieces_body
from pgherd_sidecar.core.replication.merge import decode_body
from pgherd_sidecar.core.replication.recordtext import join_record, split_record


def explain(conflict: Conflict, body: bytes, flags: int = 0) -> tuple[str, str]:
    """Say in words why a writeset with this body and flags lost: message and detail."""
    if conflict.reason is AbortReason.TOO_OLD:
        return (
            "could not serialize access: the transaction is too old to be certified",
            f"The herd has forgotten what committed before GID {conflict.winner}.",
        )
    if conflict.reason is AbortReason.MALFORMED:
        return "could not serialize access: the writeset is malformed", ""
    if conflict.reason is AbortReason.INTENDED:
        return (
            f"could not serialize access: a command of another transaction goes first "
            f"(GID {conflict.winner})",
            "It has lost before, or it excludes all writers, and has declared what it will change.",
        )
    message = f"could not serialize access due to a concurrent commit (GID {conflict.winner})"
    tables, record = _found(conflict, body, flags)
    where = ", ".join(tables)
    if record:
        return message, f"{_row(record)} of table {where}, winner GID {conflict.winner}."
    return message, (
        f"A unique key, foreign key or table lock of {where or 'its tables'}, "
        f"winner GID {conflict.winner}."
    )


def tables_of(conflict: Conflict, body: bytes, flags: int) -> list[str]:
    """Return the table whose row a writeset has lost, or all that it may have lost by."""
    return _found(conflict, body, flags)[0]


def _found(conflict: Conflict, body: bytes, flags: int) -> tuple[list[str], str]:
    """The table of the conflict and the record of its row; else the tables, and no record."""
    if flags & FLAG_PIECES:
        return [table or "the schema" for table in pieces_body(body).tables], ""
    tables: list[str] = []
    for table, pks, records in decode_body(body):
        for pk, record in zip(pks, records, strict=True):
            if pk == conflict.key & -4:
                return [table], record
        if table not in tables:
            tables.append(table)
    return [table or "the schema" for table in tables], ""


def _row(record: str) -> str:
    """Name a row by its key alone; the record of an inserted one does not tell its key."""
    if record[0] not in "UDER":
        return "A row"
    bits, parenthesis, rest = record[1:].partition("(")
    fields = split_record(parenthesis + rest)
    changed = bits.ljust(len(fields), "0")
    key = [None if bit == "1" else field for bit, field in zip(changed, fields, strict=True)]
    return f"Row {join_record(key)}"
