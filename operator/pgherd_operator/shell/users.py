"""Asks the sidecars for the users of the spec, with passwords from Secrets.

Passwords go from the Secret over TLS to the sidecar, and into no log, status or Event.
"""

import base64
from collections.abc import Sequence
from typing import Any

import structlog
from pgherd_sidecar.client import routes

from pgherd_operator.api.resource import Cluster
from pgherd_operator.api.users import User
from pgherd_operator.core.actions import GeneratePassword
from pgherd_operator.core.users import Outcome
from pgherd_operator.objects import names
from pgherd_operator.shell.executor import Executor
from pgherd_operator.shell.kube.interface import ApiError, KubernetesApi, Manifest, NotFoundError
from pgherd_operator.shell.observing import owners
from pgherd_operator.shell.observing.sidecars import SidecarError, SidecarRefusedError, Sidecars

log = structlog.get_logger()

_COMMIT_S = 10.0
"""The others have to hear of it, under load."""


async def ensure(
    api: KubernetesApi,
    sidecars: Sidecars,
    executor: Executor,
    cluster: Cluster,
    via: Sequence[int],
) -> Outcome:
    """Have all users be as the spec wants them, on every member that is asked.

    Who changes something changes it everywhere, and the next one may not have it yet: that one is
    asked at the next look.

    Args:
        executor: makes Secrets with passwords.
        via: the members to ask, one after the other.
    """
    bound = log.bind(cluster=cluster.name, namespace=cluster.namespace)
    try:
        roles = [
            _wanted(user, await _password(api, executor, cluster, user))
            for user in cluster.spec.users
        ]
        for number in via:
            answer = await sidecars.request(number, routes.ROLES.path, {"roles": roles}, _COMMIT_S)
            changed = tuple(map(str, answer.get("changed", ())))
            if changed:
                bound.info("users.changed", changed=changed, via=number)
                return Outcome(changed)
    except (_UnusableSecretError, SidecarRefusedError) as error:
        bound.warning("users.refused", reason=error.reason)
        return Outcome(refused=error.reason)
    except (ApiError, SidecarError) as error:
        bound.warning("users.unanswered", reason=str(error))
        return Outcome(unanswered=str(error))
    return Outcome()


class _UnusableSecretError(Exception):
    """There is no password to be had from a Secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _wanted(user: User, password: str | None) -> dict[str, Any]:
    if user.ensure == "absent":
        return {"name": user.name, "absent": True}
    return {
        "name": user.name,
        "login": user.login,
        "connection_limit": user.connection_limit,
        "member_of": list(user.member_of),
        "password": password,
    }


async def _password(
    api: KubernetesApi, executor: Executor, cluster: Cluster, user: User
) -> str | None:
    given = user.password_secret
    if user.ensure == "absent" or (given is None and not user.login):
        return None
    if given is not None:
        try:
            found = await api.get("Secret", cluster.namespace, given.name)
        except NotFoundError as error:
            text = f"Secret {given.name} with the password of {user.name} is missing: make it"
            raise _UnusableSecretError(text) from error
        return _read(found, given.key)
    name = names.user_secret(cluster.name, user.name)
    try:
        found = await api.get("Secret", cluster.namespace, name)
    except NotFoundError:
        await executor.execute(GeneratePassword(name, user.name))
        found = await api.get("Secret", cluster.namespace, name)
    if not owners.is_our_secret(found, cluster):
        text = f"Secret {name} is not this herd's: rename it, or name it in passwordSecret"
        raise _UnusableSecretError(text)
    return _read(found, "password")


def _read(secret: Manifest, key: str) -> str:
    name = secret["metadata"]["name"]
    try:
        password = base64.b64decode((secret.get("data") or {})[key]).decode()
    except (KeyError, ValueError):
        password = ""
    if not password or "\0" in password:
        raise _UnusableSecretError(f"Secret {name} has no password in UTF-8 under its key {key}")
    return password
