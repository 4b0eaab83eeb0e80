"""A running herd and certificates: strangers at its peer ports, and certificates that change."""

import json
import operator
import shutil
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from patience import wait_until
from pgherd_sidecar.local import herd as herd_file
from pgherd_sidecar.pki.authority import Authority

from .localherd import LocalHerd, free_port_base, standing

NAMES = ("n1", "n2", "n3")
NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def tls_herd(work_directory: Path) -> Iterator[LocalHerd]:
    """A herd of this module's own: its certificates are changed."""
    with standing(LocalHerd(work_directory / "tls", free_port_base())) as herd:
        yield herd


class Load(threading.Thread):
    """Inserts on one node, and counts what was acknowledged, until it is told to stop."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self._dsn = dsn
        self._stop_asked = threading.Event()
        self.acknowledged = 0
        self.error: Exception | None = None

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop_asked.is_set():
                try:
                    connection.execute("INSERT INTO rotation DEFAULT VALUES")
                except psycopg.Error as error:
                    self.error = error
                    return
                self.acknowledged += 1

    def reaches(self, count: int) -> None:
        """Wait until so many more were acknowledged."""
        target = self.acknowledged + count
        wait_until(lambda: self.acknowledged >= target or self.error is not None)

    def finish(self) -> None:
        self._stop_asked.set()
        self.join()


def status(herd: LocalHerd, name: str) -> dict[str, Any]:
    """What a node says of itself, its links' counters among it."""
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(str(herd.directory / name / "run" / "admin.sock"))
        admin.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: admin.recv(65536), b""))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def renewals(herd: LocalHerd) -> list[int]:
    """How often each node has taken new files, as its log tells."""
    logs = [herd.directory / name / "sidecar.log" for name in NAMES]
    return [log.read_text().count('"certificates.renewed"') for log in logs]


def write(herd: LocalHerd, directory: Path, **files: bytes) -> None:
    """Replace files of certificates, as an operator of the herd's account would."""
    owner = herd.directory.stat()
    for name, content in files.items():
        fresh = directory / "fresh"
        fresh.write_bytes(content)
        fresh.chmod(0o600)
        shutil.chown(fresh, owner.st_uid, owner.st_gid)
        fresh.replace(directory / name.replace("_", "."))


def equip(herd: LocalHerd, by: Authority, trusted: bytes) -> None:
    """Give every node a new certificate."""
    cluster_id = herd_file.load(herd.directory).cluster_id
    for name in NAMES:
        certificate, key = by.issue(
            f"{name}.{cluster_id}.pgherd", NOW - timedelta(days=380), timedelta(days=398)
        )
        write(herd, herd.directory / name / "tls", ca_crt=trusted, tls_key=key, tls_crt=certificate)


@pytest.mark.family(every=3)
@pytest.mark.parametrize("content", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096])
def test_plain_text_at_the_peer_port_is_counted_and_changes_nothing(
    tls_herd: LocalHerd, content: bytes
) -> None:
    before = status(tls_herd, "n1")
    with socket.create_connection(("127.0.0.1", tls_herd.port_base + 101)) as stranger:
        stranger.sendall(content)
        stranger.settimeout(60.0)
        assert len(stranger.recv(1024)) < 100  # an alert of TLS, or nothing
    after = status(tls_herd, "n1")
    assert after["links_unproven"] == before["links_unproven"] + 1
    assert after["links_up"] == 2
    assert after["term"] == before["term"]


@pytest.mark.long
def test_a_herd_under_load_takes_new_certificates_and_another_authority(
    tls_herd: LocalHerd,
) -> None:
    members = tls_herd.members()
    with psycopg.connect(members[0]["app_dsn"], autocommit=True) as connection:
        connection.execute("CREATE TABLE rotation (id uuid PRIMARY KEY DEFAULT gen_random_uuid())")
    tls_herd.must("verify")
    old = (tls_herd.directory / "tls" / "ca.crt").read_bytes()
    authority = Authority.new("another", NOW - timedelta(days=400))
    new = authority.certificate.public_bytes(serialization.Encoding.PEM)
    loads = [Load(member["app_dsn"]) for member in members]
    for load in loads:
        load.start()
    try:
        for step in ("trust both", "use the new one", "trust the new one only"):
            before = renewals(tls_herd)
            if step == "use the new one":
                equip(tls_herd, authority, old + new)
            else:
                for name in NAMES:
                    trusted = old + new if step == "trust both" else new
                    write(tls_herd, tls_herd.directory / name / "tls", ca_crt=trusted)
            wait_until(lambda: all(map(operator.gt, renewals(tls_herd), before)))  # noqa: B023
            for load in loads:
                load.reaches(20)
    finally:
        for load in loads:
            load.finish()
    assert [load.error for load in loads] == [None] * 3
    wait_until(lambda: all(status(tls_herd, name)["links_up"] == 2 for name in NAMES))
    assert all(status(tls_herd, name)["links_dialled"] > 2 for name in NAMES)
    tls_herd.must("verify")
    with psycopg.connect(members[1]["app_dsn"], autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM rotation").fetchone()
    assert row == (sum(load.acknowledged for load in loads),)


def test_up_renews_what_would_end_soon(tls_herd: LocalHerd) -> None:
    """The test before has left certificates that end in three weeks."""
    assert tls_herd.up().returncode == 0
    for name in NAMES:
        found = x509.load_pem_x509_certificate(
            (tls_herd.directory / name / "tls" / "tls.crt").read_bytes()
        )
        assert found.not_valid_after_utc > NOW + timedelta(days=390)
    wait_until(lambda: all(status(tls_herd, name)["links_up"] == 2 for name in NAMES))


@pytest.mark.long
def test_a_node_whose_certificate_is_lost_gets_another_one_by_start(tls_herd: LocalHerd) -> None:
    tls_herd.must("kill", "n2", "--process", "sidecar")
    shutil.rmtree(tls_herd.directory / "n2" / "tls")
    tls_herd.must("start", "n2")
    assert tls_herd.member("n2")["state"] == "primary"
