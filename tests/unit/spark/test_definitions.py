"""Which definitions count as different, and what stands between that and a false alarm."""

import pytest
from pgherd_spark.checking.check import different_definitions
from pgherd_spark.reading.catalog import EVERYTHING, Definition, Description, Server

SERVER = Server(150000, "1", "UTF8", "C", "C", "PostgreSQL 15")


def described(member: str, *definitions: Definition, changing: tuple[str, ...] = ()) -> Description:
    return Description(member, SERVER, (), {}, {}, (), (), definitions, changing)


def names(*members: Description) -> list[str]:
    found = different_definitions({one.member: one for one in members})
    return [f"{one.kind} {one.name} {','.join(one.odd)}" for one in found]


INDEX = Definition("index", "public.i", "CREATE INDEX", "7")
ROLE = Definition("role", "r", "login", "")


def test_equal_definitions_are_equal_whatever_their_rows_versions() -> None:
    same = Definition("index", "public.i", "CREATE INDEX", "8")
    assert names(described("n1", INDEX, ROLE), described("n2", ROLE, same)) == []


def test_what_is_missing_or_defined_otherwise_on_one_member_is_named_with_the_member() -> None:
    other = Definition("role", "r", "nologin", "")
    assert names(
        described("n1", INDEX, ROLE), described("n2", INDEX, other), described("n3", ROLE)
    ) == ["index public.i n3", "role r n2"]


@pytest.mark.parametrize(
    ("changing", "named"),
    [
        (("role r",), []),
        (("table public.t",), ["role r "]),
        ((EVERYTHING,), []),
    ],
    ids=["the same", "another, which an index may name", "nothing can be read"],
)
def test_while_something_is_defined_anew_only_what_cannot_depend_on_it_is_different(
    changing: tuple[str, ...], named: list[str]
) -> None:
    assert names(described("n1", INDEX, ROLE), described("n2", changing=changing)) == named
