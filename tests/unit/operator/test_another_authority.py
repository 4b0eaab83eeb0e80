"""Another authority in the place of the herd's own: members never refuse each other meanwhile."""

import base64
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from operator_world import NAME, World, condition
from pgherd_operator.objects import names
from pgherd_operator.shell.kube.interface import Manifest
from pgherd_operator.shell.observing import certificates
from pgherd_operator.shell.observing.sidecars import SidecarError
from pgherd_sidecar.pki.authority import Authority, key_pem, pem, subject

CA, OPERATOR = names.authority(NAME), names.operator_certificate(NAME)
Data = Mapping[str, str]
# Made by `openssl x509 -req -signkey`, of version 1.
PLAIN = """-----BEGIN CERTIFICATE-----
MIIBFzCBvwIUCwx/PLiGdf1rcdoUOyS9kTThHC4wCgYIKoZIzj0EAwIwDjEMMAoG
A1UEAwwDb2xkMCAXDTI2MTIwMTEyMzU0MVoYDzIxMjYxMTA3MTIzNTQxWjAOMQww
CgYDVQQDDANvbGQwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASF7YHWlNOn73E/
jA7x2IhAmStT5yzOoMQ2X3nJg+NShPrWyzdrP+2TKdh7TuF2KcOr5RpiuZOonTFa
BUkhdGC3MAoGCCqGSM49BAMCA0cAMEQCIEYfN/ABot9b4paYVk/tyww8BTA1w53I
G+Q60l/01O7dAiAIjYFylylhwz1twSF5InVE2vCeYmrjCR66yZgej+8gXg==
-----END CERTIFICATE-----
"""


def loaded(data: Data, key: str) -> list[x509.Certificate]:
    """The certificates under a key of a Secret."""
    return x509.load_pem_x509_certificates(base64.b64decode(data[key]))


def trusts(one: Data, other: Data) -> bool:
    """Whether a holder of a Secret trusts the certificate in another one, as OpenSSL has it.

    It takes no authority that does not lead to one which has signed itself, and none that is not
    called what the certificate calls its signer.
    """
    (shown,) = loaded(other, "tls.crt")
    while shown.issuer != shown.subject:
        found = [authority for authority in loaded(one, "ca.crt") if signed(shown, authority)]
        if not found:
            return False
        shown = found[0]
    return True


def signed(shown: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether this authority has signed a certificate, and may."""
    try:
        shown.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):
        return False
    own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    signs = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with contextlib.suppress(x509.ExtensionNotFound):
        named = shown.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        return signs and named.key_identifier == own
    return signs


Key = ec.EllipticCurvePrivateKey


def made(
    name: str, key: Key, signer: x509.Name, by: Key, now: datetime, *, ca: bool = True
) -> x509.Certificate:
    """A certificate as somebody else's tools make them, with an id of the key of their own."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject(name))
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=999))
        .add_extension(x509.SubjectKeyIdentifier(name.encode()), critical=False)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .sign(by, hashes.SHA256())
    )


def encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    """The data of a Secret."""
    return {key: base64.b64encode(value).decode() for key, value in data.items()}


@dataclass
class Certified(World):
    """A herd whose members prove with certificates who they are, each kubelet in its own time."""

    mounted: dict[int, Data] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    """Numbers of the members to which no kubelet brings anything."""
    ticks: int = 0

    def secret(self, name: str) -> Data:
        """What is in a Secret now."""
        found: Data = self.objects["Secret", name]["data"]
        return found

    def tick(self) -> None:
        """A kubelet takes the longer the higher the member's number."""
        super().tick()
        self.ticks += 1
        for number in self.processes:
            due = self.ticks % (3 * number) == 0 and number not in self.stuck
            if due or number not in self.mounted:
                self.mounted[number] = dict(self.secret(names.certificate(NAME, number)))
        self.mounted = {n: data for n, data in self.mounted.items() if n in self.processes}
        for one, other in permutations(self.mounted, 2):
            assert trusts(self.mounted[one], self.mounted[other]), f"{one} refuses {other}"

    async def status(self, number: int) -> Mapping[str, Any]:
        """Heard only if both sides trust each other."""
        member, operator = self.mounted.get(number), self.secret(OPERATOR)
        if member is None or not (trusts(member, operator) and trusts(operator, member)):
            raise SidecarError("certificate verify failed")
        return await super().status(number)

    def replace_authority(self) -> str:
        """Somebody puts another one there; return it."""
        issued = certificates.authority(f"pgherd {NAME}", self.now)
        self.objects["Secret", CA]["data"] = encoded(issued.data)
        return issued.data["ca.crt"].decode()

    def held(self) -> list[str]:
        """Names of the secrets with certificates."""
        wanted = [names.certificate(NAME, number) for number in self.voters()]
        return [*wanted, OPERATOR, names.jobs_certificate(NAME)]

    def is_over(self, authority: str) -> bool:
        """Whether this authority has signed everything, and alone is trusted."""
        return all(
            base64.b64decode(self.secret(name)["ca.crt"]).decode() == authority
            and trusts(self.secret(OPERATOR), self.secret(name))
            for name in self.held()
        )

    async def goes_on(self, rounds: int = 60) -> None:
        """Let everybody act for a while."""
        for _ in range(rounds):
            await self.reconcile()
            self.tick()


async def certified(**spec: Any) -> Certified:
    """A herd that has come up."""
    world = Certified()
    world.submit(**spec)
    await world.goes_on()
    assert len(world.voters()) == spec.get("instances", 3)
    return world


@pytest.mark.parametrize("spec", [{}, {"maintenance": {"paused": True}}, {"hibernated": True}])
async def test_another_authority_takes_over_and_nobody_is_refused(spec: dict[str, Any]) -> None:
    world = await certified()
    if spec:
        await world.changed(**spec)
    authority = world.replace_authority()
    await world.reconcile()
    told = condition(world, "CertificatesValid")
    assert (told["status"], told["reason"]) == ("False", "AuthorityReplaced")
    assert f"{NAME}-1-tls" in told["message"] and CA in told["message"]
    await world.goes_on()
    assert world.is_over(authority)
    assert condition(world, "CertificatesValid")["status"] == "True"
    world.writes.clear()
    await world.goes_on(10)
    assert world.writes == []
    if spec:
        await world.changed(maintenance={"paused": False}, hibernated=False)
    await world.goes_on()
    assert condition(world, "Ready")["status"] == "True"


async def test_a_member_that_has_not_got_its_secret_is_waited_for_and_named() -> None:
    world = await certified()
    world.stuck.add(2)
    authority = world.replace_authority()
    await world.goes_on()
    assert not world.is_over(authority)
    assert f"to answer first: {NAME}-2" in condition(world, "CertificatesValid")["message"]
    world.stuck.clear()
    await world.goes_on()
    assert world.is_over(authority)


async def test_a_member_that_joins_meanwhile_is_trusted_by_the_others() -> None:
    world = await certified()
    authority = world.replace_authority()
    await world.goes_on(4)
    world.change(instances=4)
    await world.goes_on(120)
    assert world.voters() == {1, 2, 3, 4}
    assert world.is_over(authority)


async def test_a_third_authority_may_follow_at_once() -> None:
    world = await certified()
    world.replace_authority()
    await world.goes_on(9)
    authority = world.replace_authority()
    await world.goes_on(120)
    assert world.is_over(authority)


async def test_an_authority_that_nobody_can_read_changes_nothing_and_is_told_of() -> None:
    world = await certified()
    world.objects["Secret", CA]["data"] = {"ca.crt": "bm9uZQ==", "tls.crt": "", "tls.key": ""}
    world.writes.clear()
    await world.goes_on(5)
    assert world.writes == []
    told = condition(world, "CertificatesValid")
    assert told["message"] == f"no certificate can be read in {CA}"


@pytest.mark.parametrize("ended", [True, False])
async def test_an_authority_is_trusted_itself_whatever_else_is_in_its_secret(ended: bool) -> None:
    """Who changes tls.crt and tls.key alone leaves the former authority in ca.crt."""
    world = await certified()
    former = base64.b64decode(world.secret(CA)["ca.crt"])
    if ended:
        former = certificates.authority("ended", world.now - timedelta(days=4000)).data["ca.crt"]
    authority = world.replace_authority()
    world.objects["Secret", CA]["data"] |= encoded({"ca.crt": former})
    await world.goes_on()
    both = "".join(sorted([authority, former.decode()]))
    assert world.is_over(both)
    assert condition(world, "CertificatesValid")["status"] == "True"


@pytest.mark.parametrize("whole", [True, False])
async def test_an_authority_below_another_one_is_trusted_with_it(whole: bool) -> None:
    world = await certified()
    root, below = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    top = made("root", root, subject("root"), root, world.now)
    middle = made("middle", below, top.subject, root, world.now)
    data = {"ca.crt": pem(top), "tls.crt": pem(middle), "tls.key": key_pem(below)}
    if whole:  # all of the chain beside it, and nothing else
        data = {"tls.crt": pem(middle) + pem(top), "tls.key": key_pem(below)}
    world.objects["Secret", CA]["data"] = encoded(data)
    await world.goes_on()
    assert world.is_over("".join(sorted([pem(top).decode(), pem(middle).decode()])))


@pytest.mark.parametrize("ca", [True, False])
async def test_what_nobody_would_accept_takes_nothing_over(ca: bool) -> None:
    """An authority whose own is not there, and a certificate that is no authority's."""
    world = await certified()
    root, below = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signer, by = (subject("root"), root) if ca else (subject("other"), below)
    other = made("other", below, signer, by, world.now, ca=ca)
    data = {"ca.crt": pem(other), "tls.crt": pem(other), "tls.key": key_pem(below)}
    world.objects["Secret", CA]["data"] = encoded(data)
    world.writes.clear()
    await world.goes_on(5)
    assert world.writes == []
    told = condition(world, "CertificatesValid")
    assert told["status"] == "False" and f"nobody would accept what {CA} signs" in told["message"]
    assert condition(world, "Ready")["status"] == "True"


@pytest.mark.parametrize("renamed", [True, False])
async def test_another_certificate_of_the_same_key_takes_over(renamed: bool) -> None:
    """What the former has signed is good by the new one only if that has its name."""
    world = await certified()
    data = {key: base64.b64decode(value) for key, value in world.secret(CA).items()}
    former = Authority.load(data["tls.crt"], data["tls.key"])
    own = subject("another") if renamed else former.certificate.subject
    new = Authority.sign_itself(own, former.key, world.now, timedelta(days=999)).certificate
    world.objects["Secret", CA]["data"] = encoded(data | {"ca.crt": pem(new), "tls.crt": pem(new)})
    await world.goes_on()
    assert world.is_over(pem(new).decode())
    assert condition(world, "Ready")["status"] == "True"


@pytest.mark.parametrize("left", [timedelta(minutes=-1), timedelta(minutes=20)])
async def test_an_authority_at_its_end_does_not_certify_again_and_again(left: timedelta) -> None:
    world = await certified()
    issued = certificates.authority("ending", world.now - timedelta(days=3650) + left)
    world.objects["Secret", CA]["data"] = encoded(issued.data)
    await world.goes_on()
    world.writes.clear()
    await world.goes_on(5)
    assert world.writes == []
    assert f"{CA} r" in condition(world, "CertificatesValid")["message"]
    assert (await world.status(1))["state"] == "primary"
    authority = world.replace_authority()
    await world.goes_on()
    assert world.is_over(authority)


async def test_an_authority_that_has_ended_is_no_failure_at_each_look() -> None:
    world = await certified()
    issued = certificates.authority("ended", world.now - timedelta(days=4000))
    world.objects["Secret", CA]["data"] = encoded(issued.data)
    await world.goes_on(5)
    assert "failed" not in world.resource["status"].get("step", "")
    assert condition(world, "Ready")["status"] == "True"


async def grown_old(world: Certified, part: float = 0.85) -> None:
    """Nobody has renewed the certificates until so much of their time is over."""
    begun, ends = certificates.validity(world.secret(OPERATOR)) or (world.now, world.now)
    world.now = begun + (ends - begun) * part


async def test_members_whose_certificates_run_out_do_not_refuse_each_other_either() -> None:
    world = await certified()
    await grown_old(world)
    authority = world.replace_authority()
    await world.goes_on()
    assert world.is_over(authority)


async def test_a_certificate_that_runs_out_waits_for_a_silent_member_for_minutes_only() -> None:
    world = await certified()
    await grown_old(world)
    world.stuck.add(3)
    world.processes[3].silent = True
    world.replace_authority()
    await world.goes_on(20)
    assert not trusts(world.secret(CA), world.secret(names.certificate(NAME, 1)))
    world.stuck.clear()  # what it shows now is trusted, and it still does not answer
    await world.goes_on(20)
    world.now += timedelta(minutes=15)
    await world.goes_on(20)
    assert trusts(world.secret(CA), world.secret(names.certificate(NAME, 1)))


async def test_who_runs_on_a_volume_that_is_being_deleted_is_told_of_the_authority() -> None:
    """Nobody takes its place while the herd is paused, and the others need its vote."""
    world = await certified()
    await world.changed(maintenance={"paused": True})
    world.mark_deleted(("PersistentVolumeClaim", f"{NAME}-2-data"))
    authority = world.replace_authority()
    await world.goes_on()
    assert world.is_over(authority)
    assert condition(world, "CertificatesValid")["status"] == "True"


async def test_nobody_is_certified_by_an_authority_that_came_after_the_look() -> None:
    world = await certified()
    await grown_old(world, 0.7)  # so all are made anew
    read = world.get

    async def get(kind: str, namespace: str, name: str) -> Manifest:
        found = await read(kind, namespace, name)
        if name == CA and world.secret(CA) == former:
            world.replace_authority()
        return found

    former = world.secret(CA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world, "get", get)
        await world.goes_on()
    assert world.is_over(base64.b64decode(world.secret(CA)["ca.crt"]).decode())


def test_an_authority_that_does_not_say_so_is_one_where_openssl_takes_it_for_one() -> None:
    assert certificates.authority_id(encoded({"tls.crt": PLAIN.encode()}))
