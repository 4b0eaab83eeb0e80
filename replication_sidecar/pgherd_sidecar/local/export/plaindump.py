"""What an archive of a member must not hold, or hold otherwise, so that a plain server can load it.

Pure: contents of an archive in, contents out. PostgreSQL's ``pg_dump`` writes what the catalog of a
member says: our schemas, triggers and grants, and increments that deal numbers out to members.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pgherd_sidecar.local.export.archive import Contents, Entry

_SCHEMAS = (b"pgherd", b"pgherd_gen")
_ABOUT = (b"COMMENT", b"ACL", b"SECURITY LABEL")
"""Kinds of what goes with the object that it is about."""
_CALLS_OURS = re.compile(rb"\n? *EXECUTE FUNCTION pgherd(_gen)?\.\w+\(\);\n")
_DBLINK = re.compile(rb"WITH SCHEMA pgherd;\n\s*\Z")
_LARGE_OBJECTS = (
    rb"lo_creat|lo_create|lo_from_bytea|lo_put|lowrite|lo_truncate|lo_truncate64|lo_unlink"
)
_GRANTS = re.compile(
    rb"^(GRANT|REVOKE) [^\n]* (TO|FROM) (pgherd_apply|pgherd_jobs)( WITH GRANT OPTION)?;\n"
    rb"|^REVOKE ALL ON FUNCTION pg_catalog\.(" + _LARGE_OBJECTS + rb")\([^\n]*\) FROM PUBLIC;\n",
    re.MULTILINE,
)
_SETTING = re.compile(rb"^ALTER DATABASE [^\n]* SET deadlock_timeout TO '100';\n", re.MULTILINE)
_ROLES = re.compile(
    rb"^(?:(?:CREATE|ALTER) ROLE pgherd_(?:apply|jobs)[ ;]"
    rb"|GRANT [^\n]* TO pgherd_(?:apply|jobs)[ ;])[^\n]*\n",
    re.MULTILINE,
)
_NUMBERS = re.compile(
    rb"\n    START WITH (?P<start>-?\d+)\n    INCREMENT BY (?P<step>-?\d+)"
    rb"(?P<rest>\n    (?:NO MINVALUE|MINVALUE -?\d+)\n    (?:NO MAXVALUE|MAXVALUE -?\d+)"
    rb"\n    CACHE \d+(?:\n    CYCLE)?(?:;|\n\);)\n\s*)\Z"
)
_VALUE = re.compile(rb", -?\d+, (?:true|false)(?P<rest>\);\n\s*)\Z")
_MENTION = re.compile(rb"\bpgherd(_gen)?\.|\bpgherd_(apply|jobs)\b")


class ChangedError(ValueError):
    """The archive and the server do not say the same of a sequence: it was altered meanwhile."""


@dataclass(frozen=True, slots=True)
class PlainSequence:
    """A sequence as its user made it, and where a plain server goes on with it.

    Attributes:
        dealt: the increment that it has on a member.
    """

    step: int
    start: int
    value: int
    called: bool
    dealt: int


Sequences = Mapping[tuple[bytes, bytes], PlainSequence]
"""By schema and name."""


def plain(contents: Contents, sequences: Sequences) -> Contents:
    """Contents without what is ours, with the sequences of users.

    Raises:
        ChangedError: a sequence of the archive is another one.
    """
    ours = {str(entry.number).encode() for entry in contents.entries if _is_ours(entry)}
    kept = []
    for entry in contents.entries:
        if str(entry.number).encode() in ours:
            continue
        if entry.kind in _ABOUT and ours.intersection(entry.depends_on):
            continue
        changed = _changed(entry, sequences)
        if changed is not None:
            kept.append(changed)
    return replace(contents, entries=tuple(kept))


def mentions(contents: Contents) -> list[str]:
    """Names of objects whose text speaks of what a plain server has not."""
    return [
        b" ".join(word for word in (entry.kind, entry.schema, entry.tag) if word).decode()
        for entry in contents.entries
        if entry.kind not in _ABOUT and _MENTION.search(entry.definition or b"")
    ]


def _is_ours(entry: Entry) -> bool:
    definition = entry.definition or b""
    if entry.schema in _SCHEMAS or (entry.kind == b"SCHEMA" and entry.tag in _SCHEMAS):
        return True
    if entry.kind in (b"TRIGGER", b"EVENT TRIGGER"):
        return _CALLS_OURS.search(definition) is not None
    return entry.kind == b"EXTENSION" and _DBLINK.search(definition) is not None


def _changed(entry: Entry, sequences: Sequences) -> Entry | None:
    """The entry as a plain server wants it, None if nothing is left of it."""
    definition = entry.definition or b""
    if entry.kind == b"ACL":
        left = _GRANTS.sub(b"", definition)
        return replace(entry, definition=left) if left.strip() else None
    if entry.kind == b"DATABASE PROPERTIES":
        left = _SETTING.sub(b"", definition)
        return replace(entry, definition=left) if left.strip() else None
    sequence = sequences.get((entry.schema or b"", entry.tag or b""))
    if sequence is None:
        return entry
    if entry.kind == b"SEQUENCE":
        return replace(entry, definition=_defined(entry, definition, sequence))
    if entry.kind == b"SEQUENCE SET":
        return replace(entry, definition=_moved(entry, definition, sequence))
    return entry


def _defined(entry: Entry, definition: bytes, sequence: PlainSequence) -> bytes:
    found = _NUMBERS.search(definition)
    if found is None or int(found["step"]) != sequence.dealt:
        raise ChangedError(_name(entry))
    numbers = f"\n    START WITH {sequence.start}\n    INCREMENT BY {sequence.step}".encode()
    return definition[: found.start()] + numbers + found["rest"]


def _moved(entry: Entry, definition: bytes, sequence: PlainSequence) -> bytes:
    found = _VALUE.search(definition)
    if found is None:
        raise ChangedError(_name(entry))
    value = f", {sequence.value}, {str(sequence.called).lower()}".encode()
    return definition[: found.start()] + value + found["rest"]


def _name(entry: Entry) -> str:
    return b".".join(word for word in (entry.schema, entry.tag) if word).decode(errors="replace")


def roles_of_users(script: bytes) -> bytes:
    """What ``pg_dumpall`` has written of roles, without ours."""
    return _ROLES.sub(b"", script)


def by_name(rows: Iterable[tuple[str, str, int, int, int, bool, int]]) -> Sequences:
    """What ``pgherd.plain_sequences()`` says: schema, name, step, start, value, called, dealt."""
    return {
        (schema.encode(), name.encode()): PlainSequence(step, start, value, called, dealt)
        for schema, name, step, start, value, called, dealt in rows
    }
