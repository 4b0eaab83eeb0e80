"""Does what the reconciler has decided, in order, and stops at the first failure.

What happened already when an action is repeated is success: that is what makes it safe to be killed
anywhere. Secrets are made here, for only here is randomness.
"""

import base64
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import assert_never

from pgherd_sidecar.client import routes
from pgherd_sidecar.pki.authority import subject

from pgherd_operator.api import KIND, OPERATOR
from pgherd_operator.api.resource import Cluster
from pgherd_operator.core import actions as act
from pgherd_operator.core import upkeep
from pgherd_operator.core.observed import Phase
from pgherd_operator.objects import config, names
from pgherd_operator.objects.model import Origin, manifest
from pgherd_operator.shell.kube.interface import (
    ConflictError,
    KubernetesApi,
    Manifest,
    NotFoundError,
)
from pgherd_operator.shell.observing import certificates
from pgherd_operator.shell.observing.reading import founders_text, ledger_data
from pgherd_operator.shell.observing.sidecars import Sidecars
from pgherd_operator.shell.resources import claim_resource


class Executor:
    """Executes actions for one herd.

    Args:
        now: the time that certificates begin at.
        tell: posts an Event about the herd.
    """

    def __init__(
        self,
        api: KubernetesApi,
        sidecars: Sidecars,
        cluster: Cluster,
        now: datetime,
        tell: Callable[[act.Event], None],
    ) -> None:
        self._api = api
        self._sidecars = sidecars
        self._cluster = cluster
        self._namespace = cluster.namespace
        self._now = now
        self._tell = tell

    async def execute(self, action: act.Action) -> None:
        """Do one thing.

        Raises:
            ApiError: the API server did not do it, or did not say so.
            SidecarError: a sidecar did not agree.
            ValueError: the CA's secret is damaged.
        """
        match action:
            case act.Apply():
                await self._apply(action)
            case act.Create() | act.Admit():
                admitted = isinstance(action, act.Admit)
                await (self._api.admit if admitted else self._create)(action.manifest)
            case act.Delete():
                await self._delete(action)
            case act.AddFinalizer() | act.RemoveFinalizer():
                await self._finalizer(action)
            case act.CreateLedger():
                await self._write_ledger(action)
            case (
                act.MarkFounded()
                | act.NoteFounders()
                | act.AdoptRelease()
                | act.FinishUpgrade()
                | act.RememberSpec()
                | act.NoteImport()
            ):
                noted: Manifest = {"data": _noted(action)}
                await self._patch("ConfigMap", names.ledger(self._cluster.name), noted)
            case act.GrowVolume():
                size: Manifest = {"resources": {"requests": {"storage": action.size}}}
                larger = {"metadata": {"uid": action.uid}, "spec": size}
                await self._patch("PersistentVolumeClaim", action.name, larger)
            case act.RetireVolume():
                retired: Manifest = {"uid": action.uid, "labels": {names.RETIRED: action.retired}}
                await self._patch("PersistentVolumeClaim", action.name, {"metadata": retired})
            case act.SettleVolume() | act.MarkImported():
                await self._annotate(action)
            case (
                act.GeneratePassword()
                | act.GenerateAuthority()
                | act.IssueCertificate()
                | act.TrustAuthorities()
            ):
                await self._secret(action)
            case act.AskLeave() | act.AskEvict():
                await self._ask(action)
            case _:
                assert_never(action)

    async def _create(self, wanted: Manifest) -> None:
        try:
            await self._api.create(wanted)
        except ConflictError:
            return  # ours from before, or another's: the next look will tell

    async def _apply(self, action: act.Apply) -> None:
        """Make or change an object; note and tell what a web hook has made of it."""
        wanted = action.manifest
        made = await self._put(wanted, action.uid)
        altered = upkeep.altered(wanted, made) if made is not None else ""
        if made is None or not altered:
            return
        noted = {"uid": made["metadata"]["uid"], "annotations": {names.ADMITTED: altered}}
        await self._patch(wanted["kind"], wanted["metadata"]["name"], {"metadata": noted})
        self._tell(upkeep.told_of(wanted))

    async def _put(self, wanted: Manifest, uid: str) -> Manifest | None:
        """Make an object, or have the one of that uid be as wanted; never another's of its name.

        Return what there is now, None where somebody else was faster: the next look will tell.
        What is made has no data yet: whatever a POST gives, an apply could not take away again.
        """
        bare = {key: value for key, value in wanted.items() if key != "data"}
        try:
            if not uid:
                uid = (await self._api.create(bare))["metadata"]["uid"]
            return await self._api.apply(wanted | {"metadata": wanted["metadata"] | {"uid": uid}})
        except ConflictError:
            return None

    async def _delete(self, action: act.Delete) -> None:
        try:
            await self._api.delete(
                action.kind, self._namespace, action.name, action.uid, action.version
            )
        except (NotFoundError, ConflictError):
            return  # it is gone, and what is there now is not what was meant

    async def _patch(self, kind: str, name: str, patch: Manifest) -> None:
        await self._api.patch(kind, self._namespace, name, patch)

    async def _annotate(self, action: act.SettleVolume | act.MarkImported) -> None:
        if isinstance(action, act.SettleVolume):
            kind, name = "PersistentVolumeClaim", action.name
            noted = {names.ORIGIN: Origin.JOINER.value}
        else:
            kind, name, noted = "Secret", action.secret, {names.IMPORTED: action.cluster_id}
        await self._patch(kind, name, {"metadata": {"uid": action.uid, "annotations": noted}})

    async def _finalizer(self, action: act.AddFinalizer | act.RemoveFinalizer) -> None:
        wanted = isinstance(action, act.AddFinalizer)
        if isinstance(action, act.AddFinalizer) and action.operator:
            marked = {"metadata": {"annotations": {OPERATOR: action.operator}}}
            await self._patch(KIND, self._cluster.name, marked)
        body = await self._api.get(KIND, self._namespace, self._cluster.name)
        if not await claim_resource(self._api, body, names.FINALIZER, wanted=wanted):
            raise ConflictError(409, f"{self._cluster.name} has been deleted or changed meanwhile")

    async def _write_ledger(self, action: act.CreateLedger) -> None:
        name, content = names.ledger(self._cluster.name), {"data": ledger_data(action.ledger)}
        if action.uid:
            await self._patch("ConfigMap", name, {"metadata": {"uid": action.uid}, **content})
        else:
            await self._create(manifest(self._cluster, "v1", "ConfigMap", name, content))

    async def _secret(
        self,
        action: act.GeneratePassword
        | act.GenerateAuthority
        | act.IssueCertificate
        | act.TrustAuthorities,
    ) -> None:
        match action:
            case act.GeneratePassword():
                await self._create(self._password(action))
            case act.GenerateAuthority():
                issued = certificates.authority(f"pgherd {self._cluster.name}", self._now)
                await self._create(self._certified(action.secret, issued, owned=False))
            case act.IssueCertificate():
                found = await self._api.get("Secret", self._namespace, action.authority)
                data = found.get("data") or {}
                if certificates.authority_id(data) != action.signer:  # nobody trusts it yet
                    raise ConflictError(409, f"{action.authority} has been changed meanwhile")
                issued = certificates.issue(
                    _decoded(data),
                    subject(action.common_name, action.organization),
                    action.dns_names,
                    self._now,
                    timedelta(days=action.validity_days),
                    action.trusted,
                )
                await self._put(self._certified(action.secret, issued, owned=True), action.uid)
            case act.TrustAuthorities():
                told = _encoded(certificates.trusting(action.trusted))
                trusting: Manifest = {"metadata": {"uid": action.uid}, "data": told}
                await self._patch("Secret", action.secret, trusting)
            case _:
                assert_never(action)

    def _password(self, action: act.GeneratePassword) -> Manifest:
        """What an application needs to connect, in the forms that frameworks like."""
        host = f"{self._cluster.name}-rw.{self._namespace}.svc"
        database, port = config.DATABASE, names.POSTGRES_PORT
        password = certificates.password()
        cluster = self._cluster
        members = [
            f"{names.member(cluster.name, number)}.{cluster.namespace}.svc"
            for number in range(1, cluster.spec.instances + 1)
        ]
        hosts = ",".join(f"{member}:{port}" for member in members)
        data = {
            "username": action.user,
            "password": password,
            "host": host,
            "port": str(port),
            "dbname": database,
            "uri": f"postgresql://{action.user}:{password}@{host}:{port}/{database}",
            "jdbc-uri": f"jdbc:postgresql://{host}:{port}/{database}"
            f"?user={action.user}&password={password}",
            # The members that the herd begins with: a driver goes to one that takes writes.
            "hosts-uri": f"postgresql://{action.user}:{password}@{hosts}/{database}"
            "?target_session_attrs=read-write&connect_timeout=3",
            "hosts-jdbc-uri": f"jdbc:postgresql://{hosts}/{database}"
            f"?user={action.user}&password={password}&targetServerType=primary"
            "&hostRecheckSeconds=1&connectTimeout=2",
            "pgpass": f"{host}:{port}:{database}:{action.user}:{password}\n",
        }
        encoded = _encoded({key: value.encode() for key, value in data.items()})
        return self._secret_manifest(
            action.secret, encoded, owned=False, kind="kubernetes.io/basic-auth"
        )

    def _certified(self, name: str, issued: certificates.Issued, *, owned: bool) -> Manifest:
        return self._secret_manifest(name, _encoded(issued.data), owned=owned)

    def _secret_manifest(
        self, name: str, data: Mapping[str, str], *, owned: bool, kind: str = "Opaque"
    ) -> Manifest:
        content = {"type": kind, "data": dict(data)}
        found = manifest(self._cluster, "v1", "Secret", name, content, owned=owned)
        del found["metadata"]["annotations"]  # no hash of secrets in public
        return found

    async def _ask(self, action: act.AskLeave | act.AskEvict) -> None:
        body = routes.body(routes.LeaveRequest(action.name, action.disk_id))
        route = routes.LEAVE if isinstance(action, act.AskLeave) else routes.EVICT
        await self._sidecars.request(action.via, route.path, body)


def _noted(
    action: act.MarkFounded
    | act.NoteFounders
    | act.AdoptRelease
    | act.FinishUpgrade
    | act.RememberSpec
    | act.NoteImport,
) -> dict[str, str]:
    """What is written into the ledger."""
    match action:
        case act.MarkFounded():
            return {"phase": Phase.FOUNDED.value}
        case act.NoteFounders(founders):
            return {"founders": founders_text(founders)}
        case act.AdoptRelease(release):
            return {
                "release": release.id,
                "sidecarImage": release.sidecar_image,
                "postgresImage": release.postgres_image,
                "upgrading": "true",
            }
        case act.FinishUpgrade():
            return {"upgrading": "false"}
        case act.RememberSpec(spec):
            return {"spec": spec}
        case act.NoteImport(imported, result):
            return {"imported": imported.value, "importResult": result}
        case _:
            assert_never(action)


def _encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


def _decoded(data: Mapping[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in data.items()}
