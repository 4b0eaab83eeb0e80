"""A copy of Python that the herd's account can run, where it can't run root's own."""

import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.local import runtime
from pgherd_sidecar.local.runtime import OWN

ACCOUNT = "nobody"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pwd.struct_passwd]:
    """One that can't read root's Python; root's umask leaves nothing to it."""
    if os.geteuid() != 0:
        pytest.skip("only root makes copies")
    tmp_path.chmod(0o755)
    monkeypatch.setattr(runtime, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(runtime, "_can_read", lambda *_: False)
    before = os.umask(0o077)
    yield pwd.getpwnam(ACCOUNT)
    os.umask(before)


def tiny(target: Path) -> None:
    """Copy an environment without packages, and a program that none but root can run."""
    source = target.parent / "source"
    for name in ("bin", "lib"):
        (source / name).mkdir(parents=True)
    (source / "bin" / "python").write_text("#!/bin/sh\nexit 0\n")
    (source / "bin" / "python").chmod(0o750)
    (target / "bin").mkdir()
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    runtime._link(str(source / "bin" / "python"), str(target / "bin" / version))
    (target / "lib").mkdir()


def test_a_copy_is_open_whatever_the_umask_and_the_modes_of_its_source(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd
) -> None:
    monkeypatch.setattr(runtime, "_copy_environment", tiny)
    interpreter = runtime.interpreter_for(account)
    assert interpreter != OWN
    package = Path(interpreter.environment["PYTHONPATH"].partition(":")[0])
    home = Path(interpreter.environment["PYTHONHOME"])
    copied = [runtime.CACHE, *package.rglob("*"), home / "lib", *(home / "bin").rglob("*")]
    assert len(copied) > 100
    closed = [one for one in copied if not stat.S_IMODE(one.stat().st_mode) & stat.S_IROTH]
    assert closed == []
    assert runtime.can_enter(account, package / "pgherd_sidecar")


def test_the_source_of_a_copy_keeps_its_modes(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd
) -> None:
    monkeypatch.setattr(runtime, "_copy_environment", tiny)
    runtime.interpreter_for(account)
    program = runtime.CACHE / "source" / "bin" / "python"
    assert stat.S_IMODE(program.stat().st_mode) == 0o750


@pytest.mark.parametrize("text", [None, "no program"])
def test_a_copy_that_does_not_work_is_no_cache(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd, text: str | None
) -> None:
    def broken(target: Path) -> None:
        tiny(target)
        for program in (target / "bin").iterdir():
            program.unlink()
            if text is not None:
                program.write_text(text)

    monkeypatch.setattr(runtime, "_copy_environment", broken)
    with pytest.raises(HerdError, match=rf"{ACCOUNT} can run neither .* nor a copy of it in .*/ca"):
        runtime.interpreter_for(account)
    assert list(runtime.CACHE.glob("python-*")) == []


def test_a_copy_that_works_for_another_account_stays(
    monkeypatch: pytest.MonkeyPatch, account: pwd.struct_passwd
) -> None:
    monkeypatch.setattr(runtime, "_copy_environment", tiny)
    home = Path(runtime.interpreter_for(account).environment["PYTHONHOME"])
    (home / f"works-for-{account.pw_uid}").rename(home / "works-for-12345")
    monkeypatch.setattr(runtime, "_trouble", lambda *_: "no library")
    with pytest.raises(HerdError, match="no library"):
        runtime.interpreter_for(account)
    assert home.exists()
