"""What is checked and written when a member becomes a plain server, and how a dump is asked for."""

import resource
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import herd
from pgherd_sidecar.local.export import dumping, leaving
from pgherd_sidecar.local.export.leaving import LeavingPlan
from pgherd_sidecar.local.export.plainserver import PlainServer, plain_configuration
from pgherd_sidecar.local.herd import Herd


@pytest.fixture
def description(tmp_path: Path) -> Herd:
    made = herd.new_herd(
        tmp_path / "herd", nodes=2, witnesses=1, port_base=30000, postgres_bin=Path("/usr/bin")
    )
    made.directory.mkdir()
    return made


def plan_of(description: Herd, name: str) -> LeavingPlan:
    return LeavingPlan(
        cluster_id=description.cluster_id,
        member=description.member(name),
        postgres_bin=description.postgres_bin,
        superuser_password="s",
        app_password="a",
        verified_gid=7,
        stands_at=6,
    )


class TestConfiguration:
    """``postgresql.conf`` without what is a herd's."""

    def test_the_include_goes_and_everything_else_stays(self) -> None:
        text = "work_mem = '5MB' # mine\n\ninclude 'pgherd.conf'\ninclude 'mine.conf'\n"
        assert plain_configuration(text, {"port": "5432", "log_line_prefix": "it's %m"}) == (
            "work_mem = '5MB' # mine\n\ninclude 'mine.conf'\n\n# Kept from the time in a herd.\n"
            "port = '5432'\nlog_line_prefix = 'it''s %m'\n# End of what was kept.\n"
        )

    def test_it_is_the_same_when_it_is_done_again(self) -> None:
        once = plain_configuration("a = 1\ninclude 'pgherd.conf'\n", {"port": "1"})
        assert plain_configuration(once, {"port": "1"}) == once

    def test_files_of_a_server(self, tmp_path: Path) -> None:
        server = PlainServer(tmp_path, Path("/usr/bin"), 5433, {"app": "secret"})
        server.pgdata.mkdir()
        (server.pgdata / "postgresql.conf").write_text("include 'pgherd.conf'\n")
        (server.pgdata / "pgherd.conf").touch()
        server.configure()
        server.configure()
        assert not (server.pgdata / "pgherd.conf").exists()
        text = (server.pgdata / "postgresql.conf").read_text()
        assert text.count("port = '5433'") == 1
        assert "include" not in text
        assert server.passfile.read_text() == "127.0.0.1:*:*:app:secret\n"
        assert server.passfile.stat().st_mode & 0o777 == 0o600

    def test_a_file_that_can_not_be_written_stays_as_it_was(self, tmp_path: Path) -> None:
        """The command is repeated then, and needs what is in it."""
        server = PlainServer(tmp_path, Path("/usr/bin"), 5433, {})
        server.pgdata.mkdir()
        main, mine = server.pgdata / "postgresql.conf", "lc_messages = 'C'\n"
        main.write_text(mine)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                server.configure()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert main.read_text() == mine

    def test_a_path_that_is_too_long_for_a_socket_has_none(self, tmp_path: Path) -> None:
        deep = tmp_path / ("x" * 90)
        server = PlainServer(deep, Path("/usr/bin"), 5433, {})
        server.pgdata.mkdir(parents=True)
        (server.pgdata / "postgresql.conf").touch()
        server.configure()
        assert "unix_socket_directories = ''" in (server.pgdata / "postgresql.conf").read_text()


class TestPlan:
    """What is written down belongs to one export."""

    def test_it_is_read_again(self, description: Herd, tmp_path: Path) -> None:
        into = tmp_path / "out"
        leaving._save(into, plan_of(description, "n1"))
        assert leaving._begun(into, description, "n1") == plan_of(description, "n1")
        gone = description.without(description.member("n1"))
        assert leaving._begun(into, gone, "n1") == plan_of(description, "n1")

    def test_one_of_another_member_or_herd_is_refused(
        self, description: Herd, tmp_path: Path
    ) -> None:
        into = tmp_path / "out"
        leaving._save(into, plan_of(description, "n1"))
        with pytest.raises(HerdError, match="is for n1 of another export"):
            leaving._begun(into, description, "n2")
        other = description.model_copy(update={"cluster_id": uuid4()})
        with pytest.raises(HerdError, match="of another export"):
            leaving._begun(into, other, "n1")

    def test_a_damaged_one_is_told(self, description: Herd, tmp_path: Path) -> None:
        (tmp_path / "export.json").write_text("{")
        with pytest.raises(HerdError, match="damaged"):
            leaving._begun(tmp_path, description, "n1")

    def test_a_directory_that_a_shell_would_read_is_refused(self, description: Herd) -> None:
        with pytest.raises(HerdError, match="choose another directory"):
            leaving.require_place(description, description.directory.with_name("a$b"))

    def test_another_file_system_is_refused(self, description: Herd) -> None:
        with pytest.raises(HerdError, match="another file system"):
            leaving.require_place(description, Path("/proc/x"))


class Server:
    """Answers one question, and notes what it was told."""

    def __init__(self, gid: int) -> None:
        self.gid = gid
        self.told: list[str] = []

    async def execute(self, statement: str, values: object = None) -> "Server":
        self.told.append(statement)
        return self

    async def fetchone(self) -> tuple[int]:
        return (self.gid,)


async def test_a_server_that_has_lost_its_last_commits_is_not_made_plain(description: Herd) -> None:
    behind = Server(5)
    with pytest.raises(HerdError, match="was at GID 6, and its server has come back at 5"):
        await leaving._uninstalled(cast(Any, behind), plan_of(description, "n1"))
    assert not any("uninstall" in statement for statement in behind.told)
    ahead = Server(9)
    plan = await leaving._uninstalled(cast(Any, ahead), plan_of(description, "n1"))
    assert plan.stands_at == 9
    assert any("uninstall" in statement for statement in ahead.told)


class TestArguments:
    """pg_dump's arguments: what writes text is for pg_restore."""

    def test_text(self) -> None:
        words = ["-sOx", "--clean", "--if-exists", "-t", "public.t", "--inserts"]
        found = dumping.arguments(words, "plain")
        assert found.restore == ("-O", "--clean", "--if-exists")
        assert found.dump == ("-s", "-x", "-t", "public.t", "--inserts")

    def test_an_archive(self) -> None:
        found = dumping.arguments(["-O", "-Z5", "-j4"], "directory")
        assert found.restore == ()
        assert found.dump == ("-O", "-Z5", "-j4")

    @pytest.mark.parametrize(
        "word", ["-Fc", "--format=c", "-f", "--file=x", "-dapp", "--dbname=x", "-h", "-U", "-p5"]
    )
    def test_what_our_own_options_say_is_refused(self, word: str) -> None:
        with pytest.raises(HerdError, match="is taken"):
            dumping.arguments([word], "plain")

    def test_text_is_not_compressed(self) -> None:
        with pytest.raises(HerdError, match="not compressed"):
            dumping.arguments(["-Z9"], "plain")
