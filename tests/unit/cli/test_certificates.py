"""The certificates of a herd on one machine: made once, renewed in time, nobody else's to read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography.x509 import load_pem_x509_certificates
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.env.network.tls import Credentials, certified_name
from pgherd_sidecar.local import certificates, herd
from pgherd_sidecar.local.herd import Herd

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


@pytest.fixture
def description(tmp_path: Path) -> Herd:
    return herd.new_herd(tmp_path, nodes=2, port_base=7000, postgres_bin=tmp_path)


def contents(description: Herd) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in description.directory.rglob("tls/*")}


def usable(description: Herd) -> bool:
    """The members' files let them shake hands with each other."""
    names = [certified_name(m.name, str(description.cluster_id)) for m in description.members]
    one, two = (
        Credentials(description.node(member).tls, name)
        for member, name in zip(description.members, names, strict=True)
    )
    dialling, answering = one.dialling(names[1]), two.answering()
    dialling.receive(b"")
    answering.receive(dialling.to_send())
    dialling.receive(answering.to_send())
    answering.receive(dialling.to_send())
    return dialling.names == {names[1]} and answering.names == {names[0]}


def test_each_node_gets_a_certificate_that_the_others_accept(description: Herd) -> None:
    certificates.provide(description)
    assert usable(description)


def test_keys_and_certificates_are_readable_by_the_owner_only(description: Herd) -> None:
    certificates.provide(description)
    found = list(description.directory.rglob("tls/*"))
    assert len(found) == 2 + 2 * 3
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    assert {path.parent.stat().st_mode & 0o777 for path in found} == {0o700}


def test_what_is_there_and_lasts_is_left_alone(description: Herd) -> None:
    certificates.provide(description)
    before = contents(description)
    certificates.provide(description, NOW + 30 * DAY)
    assert contents(description) == before


def test_another_cluster_gets_other_certificates_from_the_same_authority(
    description: Herd,
) -> None:
    certificates.provide(description)
    authority = (description.directory / "tls" / "ca.crt").read_bytes()
    split = description.model_copy(update={"cluster_id": uuid4()})
    certificates.provide(split)
    assert usable(split)
    assert (description.directory / "tls" / "ca.crt").read_bytes() == authority


def test_a_certificate_is_renewed_before_it_ends_and_the_authority_stays(description: Herd) -> None:
    certificates.provide(description, NOW - 300 * DAY)
    before = contents(description)
    certificates.provide(description, NOW)
    changed = {
        path.name for path, content in contents(description).items() if before[path] != content
    }
    assert changed == {"tls.crt", "tls.key"}
    assert usable(description)


def test_a_new_authority_is_trusted_beside_the_one_that_ends(description: Herd) -> None:
    certificates.provide(description, NOW - 3400 * DAY)
    [old] = load_pem_x509_certificates((description.directory / "tls" / "ca.crt").read_bytes())
    certificates.provide(description, NOW)
    for path in description.directory.rglob("tls/ca.crt"):
        new, kept = load_pem_x509_certificates(path.read_bytes())
        assert kept == old
        assert new.not_valid_after_utc > NOW + 3000 * DAY
    assert usable(description)
    certificates.provide(description, NOW + 300 * DAY)
    for path in description.directory.rglob("tls/ca.crt"):
        assert load_pem_x509_certificates(path.read_bytes()) == [new]


def test_what_a_clock_that_was_ahead_has_made_is_made_anew(description: Herd) -> None:
    certificates.provide(description, NOW + 400 * DAY)
    certificates.provide(description, NOW)
    assert usable(description)
    before = contents(description)
    certificates.provide(description, NOW)
    assert contents(description) == before


def test_a_certificate_that_begins_later_is_made_anew_by_the_same_authority(
    description: Herd,
) -> None:
    certificates.provide(description, NOW - 10 * DAY)
    authority = (description.directory / "tls" / "ca.crt").read_bytes()
    (description.node("n1").tls / "tls.crt").unlink()
    certificates.provide(description, NOW + 200 * DAY)
    certificates.provide(description, NOW)
    assert usable(description)
    assert (description.directory / "tls" / "ca.crt").read_bytes() == authority


def test_a_clock_that_is_far_ahead_has_no_authority_leave(description: Herd) -> None:
    certificates.provide(description, NOW)
    [old] = load_pem_x509_certificates((description.directory / "tls" / "ca.crt").read_bytes())
    for wrong_or_right in (NOW + 4000 * DAY, NOW):
        certificates.provide(description, wrong_or_right)
        for path in description.directory.rglob("tls/ca.crt"):
            assert old in load_pem_x509_certificates(path.read_bytes())
    assert usable(description)


def test_what_is_made_under_a_clock_that_is_behind_is_good_when_that_is_right_again(
    description: Herd,
) -> None:
    """Nobody can tell which of the two clocks is right."""
    certificates.provide(description, NOW)
    certificates.provide(description, NOW - 9000 * DAY)
    assert usable(description)


@pytest.mark.parametrize("lost", ["tls.crt", "tls.key"])
def test_what_a_node_has_lost_is_made_again(description: Herd, lost: str) -> None:
    certificates.provide(description)
    (description.node(description.members[0]).tls / lost).unlink()
    certificates.provide(description)
    assert usable(description)


@pytest.mark.parametrize("damage", [b"", b"no key"])
def test_a_damaged_key_of_the_authority_is_one_line_that_says_what_to_do(
    description: Herd, damage: bytes
) -> None:
    certificates.provide(description)
    key = description.directory / "tls" / "ca.key"
    key.write_bytes(damage)
    with pytest.raises(HerdError, match=f"{key} is missing or damaged: .*remove"):
        certificates.provide(description)
