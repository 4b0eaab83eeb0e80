"""Which commands make roles as they are wanted: they lead there, and then nothing is left."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pgherd_sidecar.pg import scram
from pgherd_sidecar.pg.roles import Found, Grant, KnownRole, RoleRefused, Wanted, changes
from pglast import ast, parse_sql

_NAMES = ("ann", "bob", 'we"ird', "Ümläut", "a'b", "; DROP ROLE app --", "\\", "%s {} %")
_GROUPS = ("pg_read_all_data", "app", 'gr"oup')
_THERE = {name: KnownRole(login=False, connection_limit=-1) for name in _GROUPS}


def commands(wanted: list[Wanted], found: Found) -> list[str]:
    """What is to be executed, as the server is told."""
    return [change.command.as_string(None) for change in changes(wanted, found)]


def executed(found: Found, command: str) -> Found:
    """What is there after one command, as PostgreSQL's own parser reads it."""
    (statement,) = parse_sql(command)
    node: Any = statement.stmt
    kind = type(node)
    roles, grants = dict(found.roles), set(found.grants)
    if kind in (ast.CreateRoleStmt, ast.AlterRoleStmt):
        created = kind is ast.CreateRoleStmt
        name = str(node.role if created else node.role.rolename)
        assert (name in roles) != created
        role = roles.get(name, KnownRole(login=False, connection_limit=-1))
        for option in node.options or ():
            arg = option.arg
            match option.defname:
                case "canlogin":
                    role = replace(role, login=arg.boolval)
                case "connectionlimit":
                    role = replace(role, connection_limit=int(arg.ival))
                case "password":
                    role = replace(role, verifier=arg.sval)
                case other:
                    raise AssertionError(other)
        roles[name] = role
    elif kind is ast.GrantRoleStmt:
        pair = (node.granted_roles[0].priv_name, node.grantee_roles[0].rolename)
        grants = {one for one in grants if (one.role, one.member) != pair}
        if node.is_grant:
            assert pair[0] in roles
            grants.add(Grant(*pair))
    else:
        assert kind is ast.DropRoleStmt
        (dropped,) = node.roles
        del roles[dropped.rolename]
        grants = {one for one in grants if one.member != dropped.rolename}
    return Found(roles, frozenset(grants))


_PASSWORD = st.sampled_from(["secret", "'; --", "\\'"])
_WANTED = st.builds(
    Wanted,
    st.sampled_from(_NAMES),
    absent=st.booleans(),
    login=st.booleans(),
    connection_limit=st.integers(-1, 3),
    member_of=st.lists(st.sampled_from(_GROUPS)).map(tuple),
    password=st.none() | _PASSWORD,
)
_STORED = st.none() | _PASSWORD.map(scram.verifier)
_ROLE = st.builds(KnownRole, st.booleans(), st.integers(-1, 3), _STORED)
_GRANT = st.builds(Grant, st.sampled_from(_GROUPS), st.sampled_from(_NAMES))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(_WANTED, max_size=4, unique_by=lambda one: one.name),
    st.dictionaries(st.sampled_from(_NAMES), _ROLE),
    st.lists(_GRANT, unique_by=lambda one: (one.role, one.member)),
)
def test_what_is_wanted_comes_about_and_stays(
    wanted: list[Wanted], roles: dict[str, KnownRole], grants: list[Grant]
) -> None:
    held = frozenset(one for one in grants if one.member in roles)
    before = found = Found(_THERE | roles, held)
    for command in commands(wanted, found):
        found = executed(found, command)
    for one in wanted:
        role = found.roles.get(one.name)
        assert (role is None) == one.absent
        if role is None:
            continue
        assert (role.login, role.connection_limit) == (one.login, one.connection_limit)
        mine = [grant for grant in found.grants if grant.member == one.name]
        assert {grant.role for grant in mine} == set(one.member_of)
        if one.password is not None:
            assert scram.matches(one.password, role.verifier)
        else:
            stored = before.roles.get(one.name)
            assert role.verifier == (stored.verifier if stored is not None else None)
    others = before.roles.keys() - {one.name for one in wanted}
    assert {name: found.roles[name] for name in others} == {
        name: before.roles[name] for name in others
    }
    assert commands(wanted, found) == []


def test_no_password_is_in_a_command_or_in_a_text() -> None:
    wanted = [Wanted("ann", password="of ann only")]
    (change,) = changes(wanted, Found({}))
    assert change.text == "ann: created"
    assert "of ann" not in change.command.as_string(None) + repr(change) + repr(wanted)
    assert "SCRAM-SHA-256$" not in repr(change) + repr(KnownRole(True, -1, scram.verifier("a")))


def test_members_come_after_the_roles_that_they_are_members_of() -> None:
    assert commands([Wanted("ann", member_of=("bob",)), Wanted("bob", login=False)], Found({})) == [
        'CREATE ROLE "ann" LOGIN CONNECTION LIMIT  -1',
        'CREATE ROLE "bob" NOLOGIN CONNECTION LIMIT  -1',
        'GRANT "bob" TO "ann"',
    ]


def test_a_grant_that_no_superuser_can_take_back_is_left() -> None:
    found = Found({"ann": KnownRole(True, -1), "a": KnownRole(False, -1)}, frozenset(
        {Grant("a", "ann", revocable=False)}))  # fmt: skip
    assert commands([Wanted("ann")], found) == []


_POWERFUL = KnownRole(True, -1, powerful=True)
_REFUSED = {
    "a superuser": ([Wanted("root")], {"root": _POWERFUL}, "is a superuser"),
    "dropping a superuser": ([Wanted("root", absent=True)], {"root": _POWERFUL}, "is a superuser"),
    "the owner": ([Wanted("own")], {"own": KnownRole(True, -1, owner=True)}, "owns the database"),
    "one of ours": ([Wanted("pgherd_x")], {}, "no name"),
    "dropping one of ours": ([Wanted("pgherd_apply", absent=True)], {}, "no name"),
    "one of PostgreSQL's": ([Wanted("pg_x")], {}, "no name"),
    "everybody": ([Wanted("public")], {}, "no name"),
    "too long": ([Wanted("ü" * 32)], {}, "no name"),
    "twice": ([Wanted("ann"), Wanted("ann", absent=True)], {}, "twice"),
    "member of nobody": ([Wanted("ann", member_of=("x",))], {}, "there is no such role"),
    "member of who goes": (
        [Wanted("ann", member_of=("x",)), Wanted("x", absent=True)],
        {"x": KnownRole(False, -1)},
        "there is no such role",
    ),
    "member of a superuser": ([Wanted("ann", member_of=("root",))], {"root": _POWERFUL}, "could"),
    "who runs programs": (
        [Wanted("ann", member_of=("pg_execute_server_program",))],
        {"pg_execute_server_program": KnownRole(False, -1)},
        "could become a superuser",
    ),
    "what can't be taken back": (
        [Wanted("held", password="a")], {"held": KnownRole(True, -1), "root": _POWERFUL}, "could",
    ),
    "the applier": (
        [Wanted("ann", member_of=("pgherd_apply",))],
        {"pgherd_apply": KnownRole(False, -1)},
        "could",
    ),
    "by a detour": (
        [Wanted("ann", member_of=("group",))],
        {"group": KnownRole(False, -1), "root": _POWERFUL},
        "through group",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", _REFUSED)
def test_nobody_gets_more_than_an_ordinary_role_has(case: str) -> None:
    wanted, roles, why = _REFUSED[case]
    found = Found(
        roles, frozenset({Grant("root", "group"), Grant("root", "held", revocable=False)})
    )
    with pytest.raises(RoleRefused, match=why):
        changes(wanted, found)
