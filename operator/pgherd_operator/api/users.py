"""Roles of one's own, in the spec of a ReplicatedCluster."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from pgherd_operator.api.base import Name, Section, rules

RESERVED_USERS = ("app", "none", "postgres", "public")
RESERVED_PREFIXES = ("pg_", "pgherd_")
TOO_POWERFUL = (
    "pg_execute_server_program",
    "pg_read_server_files",
    "pg_write_server_files",
    "postgres",
)
"""Who is a member of these could become a superuser."""

_UserName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z]([a-z0-9_]*[a-z0-9])?$")
]
_RoleName = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[A-Za-z_][A-Za-z0-9_$]*$")
]
_MAP_BY_NAME: dict[str, Any] = {
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
}


def _none_of(names: tuple[str, ...], *prefixes: str) -> str:
    """A condition in CEL on one name."""
    listed = ", ".join(repr(name) for name in names)
    begins = (f"!{{0}}.startsWith({prefix!r})" for prefix in prefixes)
    return " && ".join([f"!({{0}} in [{listed}])", *begins])


class PasswordKey(Section):
    """A key of a Secret in the same namespace."""

    name: Annotated[Name, Field(description="of the Secret")]
    key: Annotated[str, Field(min_length=1, max_length=253, description="in the Secret")] = (
        "password"
    )


class User(Section):
    """A role on every member, made and kept as it is written here."""

    name: Annotated[
        _UserName,
        Field(
            description="of the role",
            json_schema_extra=rules(
                (
                    _none_of(RESERVED_USERS, *RESERVED_PREFIXES).format("self"),
                    "app, postgres, public, none, pg_* and pgherd_* are not yours: "
                    "choose another name",
                )
            ),
        ),
    ]
    ensure: Annotated[
        Literal["present", "absent"],
        Field(description="absent: dropped; who is taken out of the list stays as he is"),
    ] = "present"
    login: Annotated[bool, Field(description="whether it may begin sessions")] = True
    connection_limit: Annotated[
        int, Field(ge=-1, le=10000, description="sessions on each member; -1: any number")
    ] = -1
    member_of: Annotated[
        tuple[_RoleName, ...],
        Field(
            max_length=32,
            description="all roles that it is a member of",
            json_schema_extra={
                "x-kubernetes-list-type": "set",
                **rules(
                    (
                        f"self.all(role, {_none_of(TOO_POWERFUL, 'pgherd_').format('role')})",
                        "memberOf names a role that makes a superuser",
                    )
                ),
            },
        ),
    ] = ()
    password_secret: Annotated[
        PasswordKey | None,
        Field(description="default, if it may log in: a Secret NAME-user-USER that is made"),
    ] = None

    @model_validator(mode="after")
    def _is_an_ordinary_role(self) -> Self:
        if self.name in RESERVED_USERS or self.name.startswith(RESERVED_PREFIXES):
            raise ValueError(f"{self.name} is not yours: choose another name")
        if any(role in TOO_POWERFUL or role.startswith("pgherd_") for role in self.member_of):
            raise ValueError("memberOf names a role that makes a superuser")
        return self


Users = Annotated[
    tuple[User, ...],
    Field(
        max_length=64,
        description="roles besides app, the same on every member",
        json_schema_extra=_MAP_BY_NAME,
    ),
]
