"""What becomes of the commands of a transaction: how they travel, and what they need of a member.

To parse a text takes seconds for each megabyte, and the parser goes into its depth by calls of C,
which nothing bounds: `1 + 1 + ...` of 60 kB ends the process that reads it. PostgreSQL need not
have executed it for that, since the message of a command may go on after a COMMIT. So long texts
are read by a process of their own, which is this module. Short ones can't be deep enough.

Pure but for `main`. Keeps nothing.
"""

import contextlib
import resource
import sys
from pathlib import Path
from typing import Final

import msgspec
from pglast.parser import ParseError

from pgherd_sidecar.core.replication.merge import Item, decode_items
from pgherd_sidecar.pg.ddl.commands import DdlNotSupported, resolve_commands
from pgherd_sidecar.pg.ddl.needs import Need, needs_of
from pgherd_sidecar.pg.ddl.statements import parse_captured

LONG_BYTES: Final = 20_000
"""A text has at most half as many levels as bytes, and the stack is good for twice as many."""
_MEMORY_BYTES: Final = 2 << 30
_FIRST_TO_GO: Final = "1000"
"""Where memory is short the kernel ends this process, and not the sidecar."""


class Judged(msgspec.Struct, frozen=True):
    """What is to be done with the commands of a transaction.

    Attributes:
        body: of its writeset, as it travels.
        needs: of the commands.
        unread: why the needs are not known; empty if they are.
        refusal: why the commands can't be replicated; empty if they can.
        hint: what to do instead.
    """

    body: msgspec.Raw
    needs: list[Need] = []
    unread: str = ""
    refusal: str = ""
    hint: str = ""


def unjudged(body: bytes) -> Judged:
    """The writeset of a transaction without commands."""
    return Judged(msgspec.Raw(body))


def refused(why: str, hint: str) -> Judged:
    """A transaction that can't be replicated."""
    return Judged(msgspec.Raw(b"[]"), refusal=why, hint=hint)


def are_long(items: list[Item]) -> bool:
    """Whether the texts of the commands are for a process of their own.

    Raises:
        msgspec.DecodeError: not what the event triggers write.
    """
    commands = [record for table, _, records in items if not table for record in records]
    if sum(map(len, commands)) <= LONG_BYTES:  # no text is longer than what it is captured in
        return False
    size = 0
    for captured in map(parse_captured, commands):
        for text in (captured.query, captured.quoted, captured.made, captured.sql):
            size += len(text or "")
    return size > LONG_BYTES


def judge_commands(items: list[Item]) -> Judged:
    """Judge commands by their texts.

    Args:
        items: the body of a writeset as PostgreSQL captured it.

    Raises:
        ValueError: not what PostgreSQL captures.
    """
    try:
        resolved = resolve_commands(items)
    except DdlNotSupported as error:
        return refused(str(error), error.hint)
    body = msgspec.Raw(msgspec.json.encode(resolved))
    try:
        return Judged(body, needs_of(resolved))
    except ParseError as error:
        return Judged(body, unread=str(error))


def main() -> None:
    """Judge the commands of the body on the standard input; the answer is a line of JSON."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    judged = judge_commands(decode_items(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(msgspec.json.encode(judged) + b"\n")


if __name__ == "__main__":
    main()
