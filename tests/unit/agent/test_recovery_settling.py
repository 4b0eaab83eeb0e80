"""A copy is made this member's own only by a server that hashes keys as the other members do."""

import sys
from pathlib import Path

import pytest
from pgherd_sidecar.agent.base.errors import UnfitError
from pgherd_sidecar.agent.membership.notes import SPLIT_AT, Note
from pgherd_sidecar.agent.recovery import basebackup
from pgherd_sidecar.env.processes.programs import ProgramError
from test_recovery_rebuild import CLUSTER, config_in

_POSTGRES = """#!/bin/sh
cat > "$0.asked"
echo 'backend>   1: key_fingerprint	(typeid = 25, len = -1, typmod = -1, byval = f)'
echo '	 1: key_fingerprint = "abc"	(typeid = 25, len = -1, typmod = -1, byval = f)'
exec sh "$0.then"
"""


async def settle(directory: Path, fingerprint: str, then: str = "exit 0") -> str:
    """Settle a copy by a stand-in for PostgreSQL, which hashes as ``abc``; return what it heard."""
    programs = directory / "bin"
    programs.mkdir()
    (programs / "postgres").write_text(_POSTGRES)
    (programs / "postgres").chmod(0o755)
    (programs / "postgres.then").write_text(then)
    config, recovery = config_in(directory)
    recovery = recovery.model_copy(update={"postgres_bin": programs, "overlay": None})
    copy = directory / "copy"
    copy.mkdir()
    (copy / "postgresql.auto.conf").write_text("archive_mode = 'on'\n")
    await basebackup.make_own(
        config, recovery, copy, needed_gid=7, fingerprint=fingerprint, sequences={"s": 3}
    )
    return (programs / "postgres.asked").read_text()


async def test_a_server_that_hashes_alike_settles_the_copy(tmp_path: Path) -> None:
    asked = await settle(tmp_path, "abc")
    assert "become_member(3, 'n3', 7)" in asked
    assert "'{\"s\": 3}'" in asked.replace("''", "'")


async def test_a_copy_of_another_cluster_is_refused_unless_it_is_common(tmp_path: Path) -> None:
    """The partner may have split off while it was copied, or this member since."""
    Note(tmp_path, SPLIT_AT).write("950")
    asked = (await settle(tmp_path, "abc")).splitlines()
    (check,) = (line for line in asked if "another cluster" in line)
    assert f"s.cluster_id OPERATOR(pg_catalog.<>) ''{CLUSTER}'')" in check
    assert "OPERATOR(pg_catalog.>) 950 THEN RAISE EXCEPTION" in check
    assert asked.index(check) < next(i for i, one in enumerate(asked) if "become_member" in one)


async def test_a_copy_does_not_go_on_with_its_partners_archive(tmp_path: Path) -> None:
    await settle(tmp_path, "abc")
    settings = (tmp_path / "copy" / "postgresql.auto.conf").read_text().splitlines()
    assert settings[0] == "archive_mode = 'on'" and "archive_mode = 'off'" in settings[1:]


async def test_a_server_that_hashes_otherwise_is_unfit_for_good(tmp_path: Path) -> None:
    with pytest.raises(UnfitError, match="hashes keys otherwise"):
        await settle(tmp_path, "other", then="sleep 600")


async def test_a_server_that_does_not_tell_how_it_hashes_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "_POSTGRES", '#!/bin/sh\ncat > "$0.asked"\n')
    with pytest.raises(ProgramError, match="how it hashes"):
        await settle(tmp_path, "abc")


async def test_a_copy_that_can_not_be_settled_is_the_copy_s_fault(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="the copy stands at GID 5"):
        await settle(tmp_path, "abc", then="echo 'ERROR:  the copy stands at GID 5'; exit 1")
