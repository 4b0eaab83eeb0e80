"""Roles as somebody wants them: which commands make them so, on every member.

``changes`` decides, from what is asked for and what is there; what is as it should be is left
alone, so that the same wishes again give nothing to do. The commands are for
``pgherd.run_everywhere()``. Nobody gets here what would make him a superuser, in name or in effect.

It keeps nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
from psycopg import AsyncConnection, sql

from pgherd_sidecar.pg import scram

NAME_MAX: Final = 63
"""Bytes of a name that PostgreSQL keeps."""
_POWERFUL: Final = frozenset(
    ("pg_execute_server_program", "pg_read_server_files", "pg_write_server_files")
)
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX, pattern=r"^[^\x00]*$")]


class RoleRefused(ValueError):
    """A role can't be as it is wanted; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A role as it should be.

    Attributes:
        absent: there should be none; the other fields do not count.
        connection_limit: sessions at a time, on each member; -1 for any number.
        member_of: all roles that it is a member of.
        password: in clear, or a verifier of SCRAM-SHA-256; None leaves the one that it has.
    """

    name: _Name
    absent: bool = False
    login: bool = True
    connection_limit: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] = -1
    member_of: tuple[_Name, ...] = ()
    password: Annotated[str, msgspec.Meta(min_length=1, pattern=r"^[^\x00]*$")] | None = field(
        default=None, repr=False
    )


@dataclass(frozen=True, slots=True)
class KnownRole:
    """A role as it is.

    Attributes:
        powerful: a superuser, or can become one or pass by rules: REPLICATION, BYPASSRLS,
            CREATEROLE.
        owner: of the database.
    """

    login: bool
    connection_limit: int
    verifier: str | None = field(default=None, repr=False)
    powerful: bool = False
    owner: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A membership.

    Attributes:
        revocable: a superuser's REVOKE takes it back (from PostgreSQL 16 on each grantor has his).
    """

    role: str
    member: str
    revocable: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """What is there."""

    roles: Mapping[str, KnownRole]
    grants: frozenset[Grant] = frozenset()


@dataclass(frozen=True, slots=True)
class RoleChange:
    """One command.

    Attributes:
        text: what it does, in words, without a password.
    """

    text: str
    command: sql.Composed = field(repr=False)


async def read(connection: AsyncConnection[Any]) -> Found:
    """Read all roles.

    Raises:
        psycopg.Error: the server is gone, or refuses.
    """
    roles = await connection.execute(
        "SELECT a.rolname, a.rolcanlogin, a.rolconnlimit, a.rolpassword,"
        " a.rolsuper OR a.rolreplication OR a.rolbypassrls OR a.rolcreaterole,"
        " EXISTS (SELECT FROM pg_database d"
        "          WHERE d.datdba = a.oid AND d.datname = current_database())"
        " FROM pg_authid a"
    )
    found = {name: KnownRole(*values) for name, *values in await roles.fetchall()}
    grants = await connection.execute(
        "SELECT r.rolname, m.rolname,"
        " bool_or(a.grantor = 10 OR current_setting('server_version_num')::int < 160000)"
        " FROM pg_auth_members a JOIN pg_roles r ON r.oid = a.roleid"
        " JOIN pg_roles m ON m.oid = a.member"
        " GROUP BY r.rolname, m.rolname"
    )
    return Found(found, frozenset(Grant(*values) for values in await grants.fetchall()))


def changes(wanted: Sequence[Wanted], found: Found) -> list[RoleChange]:
    """Decide what to execute, in this order; nothing where all is as wanted.

    Raises:
        RoleRefused: not these roles, or not so.
    """
    _check(wanted, found)
    present = [one for one in wanted if not one.absent]
    return [
        *(change for one in present for change in _attributes(one, found.roles.get(one.name))),
        *(change for one in present for change in _memberships(one, found.grants)),
        *(
            RoleChange(f"{one.name}: dropped", _command("DROP ROLE {}", one.name))
            for one in wanted
            if one.absent and one.name in found.roles
        ),
    ]


def _attributes(wanted: Wanted, role: KnownRole | None) -> Iterator[RoleChange]:
    password = wanted.password
    is_new = password is not None and not scram.matches(password, role.verifier if role else None)
    options: list[sql.Composable] = []
    if role is None or role.login != wanted.login:
        options.append(sql.SQL("LOGIN" if wanted.login else "NOLOGIN"))
    if role is None or role.connection_limit != wanted.connection_limit:
        limit = sql.Literal(wanted.connection_limit)
        options.append(sql.SQL("CONNECTION LIMIT {}").format(limit))
    if is_new and password is not None:
        options.append(sql.SQL("PASSWORD {}").format(sql.Literal(scram.verifier(password))))
    if not options:
        return
    verb = "CREATE ROLE {} " if role is None else "ALTER ROLE {} "
    what = "created" if role is None else "password changed" if is_new else "changed"
    yield RoleChange(
        f"{wanted.name}: {what}", _command(verb, wanted.name) + sql.SQL(" ").join(options)
    )


def _memberships(wanted: Wanted, grants: frozenset[Grant]) -> Iterator[RoleChange]:
    known = {one.role: one for one in grants if one.member == wanted.name}
    for role in sorted(set(wanted.member_of)):
        if role not in known:
            yield RoleChange(
                f"{wanted.name}: member of {role}", _command("GRANT {} TO {}", role, wanted.name)
            )
    for role in sorted(known.keys() - set(wanted.member_of)):
        if known[role].revocable:
            yield RoleChange(
                f"{wanted.name}: not member of {role}",
                _command("REVOKE {} FROM {}", role, wanted.name),
            )


def _command(text: Any, *names: str) -> sql.Composed:
    return sql.SQL(text).format(*map(sql.Identifier, names))


def _check(wanted: Sequence[Wanted], found: Found) -> None:
    """Refuse what must not be asked for."""
    names = [one.name for one in wanted]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RoleRefused(f"role {twice[0]} is asked for twice")
    present = {one.name for one in wanted if not one.absent}
    known = (found.roles.keys() - set(names)) | present
    for one in wanted:
        _check_name(one.name, found.roles.get(one.name))
        for role in one.member_of if not one.absent else ():
            if role not in known:
                raise RoleRefused(f"{one.name} can't be a member of {role}: there is no such role")
            _check_powers(one.name, role, found)
        for grant in found.grants:
            if grant.member == one.name and not (grant.revocable or one.absent):
                _check_powers(one.name, grant.role, found)


def _check_name(name: str, role: KnownRole | None) -> None:
    reserved = name in ("public", "none") or name.startswith(("pg_", "pgherd_"))
    if reserved or len(name.encode()) > NAME_MAX:
        raise RoleRefused(f"{name} is no name for a role of yours: choose another one")
    if role is not None and (role.powerful or role.owner):
        raise RoleRefused(
            f"role {name} is there, and owns the database or is a superuser, or may replicate, "
            "bypass row security or make roles: choose another name"
        )


def _check_powers(member: str, role: str, found: Found) -> None:
    """Refuse what a role that could do more than this one would come with."""
    reached, left = set[str](), [role]
    while left:
        one = left.pop()
        if one in reached:
            continue
        reached.add(one)
        there = found.roles.get(one)
        if one in _POWERFUL or one.startswith("pgherd_") or (there is not None and there.powerful):
            via = "" if one == role else f" through {role}"
            raise RoleRefused(
                f"{member} can't be a member of {one}{via}: it could become a superuser"
            )
        left += [grant.role for grant in found.grants if grant.member == one]
