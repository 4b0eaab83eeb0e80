"""``kubectl pgherd report``: what is in the file, and what must never be."""

import json
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pgherd_operator import report

PODS = {
    "items": [
        {
            "metadata": {"name": "herd-1"},
            "status": {
                "containerStatuses": [
                    {"name": "postgres", "restartCount": 1},
                    {"name": "sidecar", "restartCount": 0},
                ]
            },
        }
    ]
}
LOG = b"""LOG:  statement: ALTER ROLE app PASSWORD 'hush hush'
LOG:  connecting to postgresql://app:hush@herd-rw:5432/app
LOG:  host=herd-rw password=hush user=app
LOG:  sslpassword=hush
"password": "hush"
ALTER ROLE app PASSWORD 'hush''hush';
    pg_hba:
    - host all all all ldap ldapserver=l ldapbindpasswd=hush ldapport=389
    - host all all all ldap ldapserver=l ldapbindpasswd="hush's hush" ldapport=389
    - 'host all all all ldap ldapserver=l "ldapbindpasswd=hush hush" ldapport=389'
    - host all all all radius radiusservers=r radiussecrets=hush,hush radiusports=1812
    - host all all all radius radiusservers=r radiussecrets=\"\"\"hush one\"\",\"\"hush two\"\"\"
{"pgHba":["host all all all ldap ldapbindpasswd=\\"hush hush\\" ldapport=389"]}
ALTER ROLE app WITH LOGIN PASSWORD 'SCRAM-SHA-256$4096:hush==$hush=:hush=';
-----BEGIN EC PRIVATE KEY-----
hush
-----END EC PRIVATE KEY-----
LOG:  checkpoint complete
"""


class Kubectl:
    """Knows one pod; has no Events."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        asked = " ".join(arguments)
        self.asked.append(asked)
        if asked.startswith("get events"):
            return subprocess.CompletedProcess(asked, 1, b"", b"no right to password='hush'\n")
        if asked.startswith("get pods") and asked.endswith("json"):
            there = "pgherd.dev/cluster=herd" in asked
            return subprocess.CompletedProcess(
                asked, 0, json.dumps(PODS if there else {"items": []}).encode(), b""
            )
        return subprocess.CompletedProcess(asked, 0, LOG, b"")


def test_a_report_holds_what_can_be_had_and_says_what_can_not(tmp_path: Path) -> None:
    path, kubectl = tmp_path / "report.tar.gz", Kubectl()
    failures = report.write(path, "herd", kubectl, "pgherd-system")
    with tarfile.open(path) as archive:
        found = {
            name.removeprefix("herd-report/"): (archive.extractfile(name) or pytest.fail()).read()
            for name in archive.getnames()
        }
    assert {
        "versions.json", "resources/replicatedclusters.yaml", "resources/snapshots.yaml",
        "resources/pods.yaml", "logs/herd-1.postgres.log", "logs/herd-1.postgres.previous.log",
        "logs/herd-1.sidecar.log", "sidecars/herd-1.status.json", "sidecars/herd-1.view.json",
        "operator.log", "about.txt",
    } <= found.keys()  # fmt: skip
    assert "logs/herd-1.sidecar.previous.log" not in found
    assert [line.split(":")[0] for line in failures] == ["events.txt"]
    assert b"events.txt: no right" in found["about.txt"]
    for name, content in found.items():
        assert b"hush" not in content, name
    log = found["logs/herd-1.postgres.log"]
    assert b"checkpoint complete" in log
    assert log.count(b"ldapport=389") == 3 and b"radiusports=1812" in log


def test_no_secret_is_asked_for(tmp_path: Path) -> None:
    kubectl = Kubectl()
    report.write(tmp_path / "report.tar.gz", "herd", kubectl, "pgherd-system")
    assert not [asked for asked in kubectl.asked if "secret" in asked.lower()]


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    path.write_text("mine")
    with pytest.raises(FileExistsError):
        report.write(path, "herd", Kubectl(), "pgherd-system")
    assert path.read_text() == "mine"


@given(st.binary(max_size=200))
def test_redacting_twice_is_redacting_once(content: bytes) -> None:
    once = report.redacted(content)
    assert report.redacted(once) == once
