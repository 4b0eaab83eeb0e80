"""Ports and directories that are taken, and one command at a time."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local.directory import require_empty, require_empty_or_claimed
from pgherd_sidecar.local.lock import LOCK_FILE, locked
from pgherd_sidecar.local.ports import require_free


def test_a_taken_port_is_named_with_who_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HerdError, match=rf"port {port} is taken by \S+ \(pid {os.getpid()}\)"):
            require_free([port], choosable=False)


@pytest.mark.parametrize(
    ("choosable", "remedy"),
    [(True, "stop it or choose another --port-base"), (False, "stop it")],
)
def test_another_port_is_advised_only_where_it_can_be_chosen(choosable: bool, remedy: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(HerdError, match=rf"is taken by .*\): {remedy}$"),
    ):
        require_free([server.getsockname()[1]], choosable=choosable)


@pytest.mark.parametrize(
    ("choosable", "remedy"),
    [(True, "choose a higher --port-base"), (False, "`sysctl .*_port_start=7` lets it")],
)
def test_a_port_that_the_account_may_not_have_is_not_called_taken(
    monkeypatch: pytest.MonkeyPatch, choosable: bool, remedy: str
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(HerdError, match=f"this account may not listen on port 7: {remedy}"):
        require_free([7], choosable=choosable)


def test_a_port_taken_on_all_addresses_counts() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(HerdError, match=f"port {port} is taken"):
            require_free([port], choosable=False)


def test_a_released_port_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    require_free([port], choosable=False)


async def test_a_second_command_gives_up_after_its_time(tmp_path: Path) -> None:
    async with locked(tmp_path, timeout_s=0):
        with pytest.raises(HerdError, match="another pgherd command is at work in"):
            async with locked(tmp_path, timeout_s=0):
                pass


async def test_the_lock_can_be_taken_again_after_its_release(tmp_path: Path) -> None:
    for _ in range(2):
        async with locked(tmp_path, timeout_s=0):
            pass


async def test_a_lock_file_that_was_replaced_does_not_count(tmp_path: Path) -> None:
    async with locked(tmp_path, timeout_s=0):
        (tmp_path / LOCK_FILE).unlink()
        async with locked(tmp_path, timeout_s=0):
            assert (tmp_path / LOCK_FILE).exists()


async def test_no_directory_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HerdError, match=r"cannot open .*: No such file"):
        async with locked(tmp_path / "gone", timeout_s=0):
            pass


async def test_what_another_command_is_making_does_not_hinder_waiting_for_it(
    tmp_path: Path,
) -> None:
    async with locked(tmp_path, timeout_s=0):
        (tmp_path / "herd.json.new").touch()
        require_empty_or_claimed(tmp_path)
        with pytest.raises(HerdError, match=r"it has herd\.json\.new"):
            require_empty(tmp_path)


@pytest.mark.parametrize("check", [require_empty, require_empty_or_claimed])
def test_what_is_somebody_elses_hinders(check: Callable[[Path], None], tmp_path: Path) -> None:
    check(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(HerdError, match=r"it has thesis\.tex"):
        check(tmp_path)
