"""What pg_dump writes of a member, made what it would write of a plain server."""

import pytest
from pgherd_sidecar.local.export import plaindump
from pgherd_sidecar.local.export.archive import Contents, Entry
from pgherd_sidecar.local.export.plaindump import ChangedError, PlainSequence

_SERIAL = b"""CREATE SEQUENCE public.s
    AS integer
    START WITH 3
    INCREMENT BY 8
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


"""
_IDENTITY = b"""ALTER TABLE public.t ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public."a
    START WITH 3
    INCREMENT BY 8"
    START WITH -3
    INCREMENT BY -8
    MINVALUE -100
    MAXVALUE -1
    CACHE 5
    CYCLE
);


"""
_PLAIN = {
    (b"public", b"s"): PlainSequence(1, 1, 40, called=True, dealt=8),
    (b"public", b"a\n    START WITH 3\n    INCREMENT BY 8"): PlainSequence(
        -1, -1, -1, called=False, dealt=-8
    ),
}


def entry(kind: str, tag: bytes, text: bytes, number: int = 1, **more: object) -> Entry:
    schema, depends_on = more.get("schema", b"public"), more.get("depends_on", ())
    assert isinstance(schema, bytes)
    assert isinstance(depends_on, tuple)
    return Entry(number, b"", tag, kind.encode(), 1, text, b"", schema, b"", depends_on, b"")


def made_plain(*entries: Entry) -> tuple[Entry, ...]:
    return plaindump.plain(Contents(b"", 4, entries), _PLAIN).entries


def test_a_sequence_has_its_users_increment_and_start() -> None:
    (found,) = made_plain(entry("SEQUENCE", b"s", _SERIAL))
    assert found.definition == _SERIAL.replace(b"WITH 3", b"WITH 1").replace(b"BY 8", b"BY 1")


def test_a_name_that_looks_like_an_increment_is_left_alone() -> None:
    (found,) = made_plain(entry("SEQUENCE", b"a\n    START WITH 3\n    INCREMENT BY 8", _IDENTITY))
    assert found.definition == _IDENTITY.replace(b"WITH -3", b"WITH -1").replace(b"BY -8", b"BY -1")


def test_a_value_is_past_what_all_members_gave_out() -> None:
    text = b"SELECT pg_catalog.setval('public.s', 17, false);\n"
    (found,) = made_plain(entry("SEQUENCE SET", b"s", text))
    assert found.definition == b"SELECT pg_catalog.setval('public.s', 40, true);\n"


def test_a_sequence_that_is_not_dealt_out_stays_as_it_is() -> None:
    local = entry("SEQUENCE", b"of_a_local_table", _SERIAL)
    assert made_plain(local) == (local,)


def test_one_that_was_altered_meanwhile_is_an_error() -> None:
    with pytest.raises(ChangedError, match=r"public\.s"):
        made_plain(entry("SEQUENCE", b"s", _SERIAL.replace(b"BY 8", b"BY 16")))


@pytest.mark.parametrize(
    ("kind", "tag", "text", "schema"),
    [
        ("SCHEMA", b"pgherd", b"CREATE SCHEMA pgherd;\n", b""),
        ("TABLE", b"node", b"CREATE TABLE pgherd.node ();\n", b"pgherd"),
        ("FUNCTION", b"f", b"CREATE ...", b"pgherd_gen"),
        (
            "EVENT TRIGGER", b"pgherd_end",
            b"CREATE EVENT TRIGGER pgherd_end ON ddl_command_end\n   EXECUTE FUNCTION"
            b" pgherd.command_end();\n", b"",
        ),
        (
            "TRIGGER", b"t pgherd_insert",
            b"CREATE TRIGGER pgherd_insert AFTER INSERT ON public.t REFERENCING NEW TABLE AS"
            b" new_rows FOR EACH STATEMENT EXECUTE FUNCTION pgherd_gen.insert_17();\n\n\n",
            b"public",
        ),
        (
            "ACL", b"FUNCTION lo_creat(integer)",
            b"REVOKE ALL ON FUNCTION pg_catalog.lo_creat(integer) FROM PUBLIC;\n\n", b"pg_catalog",
        ),
        (
            "ACL", b"FUNCTION f(integer)", b"GRANT ALL ON FUNCTION public.f(integer) TO"
            b" pgherd_apply;\n", b"public",
        ),
    ],
)  # fmt: skip
def test_what_is_ours_is_gone(kind: str, tag: bytes, text: bytes, schema: bytes) -> None:
    assert made_plain(entry(kind, tag, text, schema=schema)) == ()


def test_the_extension_is_gone_with_what_is_said_of_it_unless_it_is_the_users() -> None:
    ours = entry(
        "EXTENSION", b"dblink", b"CREATE EXTENSION IF NOT EXISTS dblink WITH SCHEMA pgherd;\n", 9
    )
    comment = entry("COMMENT", b"EXTENSION dblink", b"COMMENT ...", 10, depends_on=(b"9",))
    assert made_plain(ours, comment) == ()
    theirs = entry(
        "EXTENSION", b"dblink", b"CREATE EXTENSION IF NOT EXISTS dblink WITH SCHEMA public;\n", 9
    )
    assert made_plain(theirs, comment) == (theirs, comment)


@pytest.mark.parametrize(
    ("kind", "tag", "text"),
    [
        ("TRIGGER", b"t x", b"CREATE TRIGGER x AFTER INSERT ON public.t EXECUTE FUNCTION a.b();\n"),
        ("TABLE", b"t", b"CREATE TABLE public.t (x text DEFAULT 'EXECUTE FUNCTION pgherd.f()');\n"),
        ("ACL", b"FUNCTION lo_put()", b"GRANT ALL ON FUNCTION pg_catalog.lo_put() TO bob;\n"),
    ],
)
def test_what_is_the_users_stays(kind: str, tag: bytes, text: bytes) -> None:
    theirs = entry(kind, tag, text)
    assert made_plain(theirs) == (theirs,)


def test_of_a_grant_only_our_lines_go() -> None:
    text = (
        b"REVOKE ALL ON FUNCTION public.f(integer) FROM PUBLIC;\n"
        b"GRANT ALL ON FUNCTION public.f(integer) TO pgherd_apply;\n"
        b"GRANT ALL ON FUNCTION public.f(integer) TO clerk;\n"
    )
    (found,) = made_plain(entry("ACL", b"FUNCTION f(integer)", text))
    assert found.definition == b"".join(text.splitlines(keepends=True)[::2])


def test_of_what_is_set_for_the_database_only_our_line_goes() -> None:
    ours = b"ALTER DATABASE app SET deadlock_timeout TO '100';\n"
    theirs = b"ALTER DATABASE app SET \"DateStyle\" TO 'ISO, DMY';\n"
    (found,) = made_plain(entry("DATABASE PROPERTIES", b"app", ours + theirs))
    assert found.definition == theirs
    assert made_plain(entry("DATABASE PROPERTIES", b"app", ours)) == ()


def test_text_that_speaks_of_ours_is_told() -> None:
    body = entry("FUNCTION", b"f()", b"CREATE FUNCTION ... pgherd.last_gid()")
    other = entry("TABLE", b"pgherd_like", b"CREATE TABLE public.pgherd_like ();")
    assert plaindump.mentions(Contents(b"", 4, (body, other))) == ["FUNCTION public f()"]


def test_of_roles_ours_are_gone() -> None:
    theirs = (
        b"CREATE ROLE pgherd_apply_reader;\nGRANT pgherd_apply_reader TO app GRANTED BY postgres;\n"
        b"ALTER ROLE app WITH LOGIN;\n"
    )
    ours = (
        b"CREATE ROLE pgherd_jobs;\nALTER ROLE pgherd_apply WITH LOGIN BYPASSRLS;\n"
        b"GRANT pg_read_all_data TO pgherd_jobs GRANTED BY postgres;\n"
        b"GRANT SET ON PARAMETER deadlock_timeout TO pgherd_apply;\n"
    )
    assert plaindump.roles_of_users(ours + theirs + ours) == theirs
