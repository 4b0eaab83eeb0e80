"""The sidecars' admin API over HTTPS, with certificates on both sides.

A member is known by the name ``NAME.CLUSTER_ID.pgherd`` in its certificate, never by its address;
the operator shows ``operator.CLUSTER_ID.pgherd``. Certificates come from the herd's secrets and are
read anew for each look, so a rotated one is used at once.
"""

import base64
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from pgherd_sidecar.client import routes

from pgherd_operator.api.resource import Cluster
from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import KubernetesApi, NotFoundError
from pgherd_operator.shell.observing.reading import parse_ledger
from pgherd_operator.shell.observing.sidecars import ANSWER_S, SidecarError, SidecarRefusedError

_FILES = ("ca.crt", "tls.crt", "tls.key")


class HttpsSidecars:
    """See Sidecars; for the time of one reconciliation."""

    def __init__(self, api: KubernetesApi, cluster: Cluster) -> None:
        self._api = api
        self._cluster = cluster
        self._context: ssl.SSLContext | None = None
        self._cluster_id = ""

    async def prepare(self) -> None:
        """See Sidecars."""
        await self._prepare()

    async def status(self, number: int) -> Mapping[str, Any]:
        """See Sidecars."""
        return await self._call(routes.STATUS.method, number, routes.STATUS.path, None, ANSWER_S)

    async def request(
        self, number: int, path: str, body: Mapping[str, Any], timeout_s: float = ANSWER_S
    ) -> Mapping[str, Any]:
        """See Sidecars."""
        return await self._call("POST", number, path, body, timeout_s)

    async def _call(
        self,
        method: str,
        number: int,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
    ) -> Mapping[str, Any]:
        context = await self._prepare()
        cluster = self._cluster
        host = names.address(cluster.name, cluster.namespace, number)
        url = f"https://{host}:{names.ADMIN_PORT}{path}"
        certified = f"{names.member(cluster.name, number)}.{self._cluster_id}.pgherd"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(timeout_s)) as session,
                session.request(
                    method, url, json=body, ssl=context, server_hostname=certified
                ) as response,
            ):
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise SidecarError(f"{host}: {error or type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise SidecarError(f"{host}: not an object")
        if response.status in (400, 409):
            raise SidecarRefusedError(host, str(answer.get("error", response.status)))
        if response.status >= 400:
            raise SidecarError(f"{host}: {answer.get('error', response.status)}")
        return answer

    async def _prepare(self) -> ssl.SSLContext:
        if self._context is not None:
            return self._context
        cluster = self._cluster
        try:
            ledger = await self._api.get("ConfigMap", cluster.namespace, names.ledger(cluster.name))
            secret = await self._api.get(
                "Secret", cluster.namespace, names.operator_certificate(cluster.name)
            )
        except NotFoundError as error:
            raise SidecarError(f"nobody can be asked yet: {error}") from error
        known = parse_ledger(ledger)
        if known is None:
            raise SidecarError("the ledger is damaged")
        self._cluster_id = known.cluster_id
        self._context = _context(secret.get("data") or {})
        return self._context


def _context(data: Mapping[str, str]) -> ssl.SSLContext:
    """A context with the operator's certificate.

    OpenSSL reads keys from files only: they are written to the container's memory-backed /tmp and
    removed before this returns.
    """
    try:
        content = {name: base64.b64decode(data[name]) for name in _FILES}
        with tempfile.TemporaryDirectory() as directory:
            for name in _FILES:
                path = Path(directory) / name
                path.touch(mode=0o600)
                path.write_bytes(content[name])
            context = ssl.create_default_context(cafile=Path(directory) / "ca.crt")
            context.load_cert_chain(Path(directory) / "tls.crt", Path(directory) / "tls.key")
    except (KeyError, ValueError, ssl.SSLError) as error:
        raise SidecarError(f"the operator's certificate cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
