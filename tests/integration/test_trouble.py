"""The check of the sidecars' logs that every test here ends with is able to fail."""

import json
import textwrap
from pathlib import Path

import pytest

from .localherd import LocalHerd

pytest_plugins = ["pytester"]

_TESTS = """
    import json
    from pathlib import Path

    import pytest
    from integration.localherd import LocalHerd

    LINE = json.dumps({line})

    @pytest.fixture
    def herd(tmp_path):
        (tmp_path / "n2").mkdir()
        yield LocalHerd(tmp_path, 31000)
        {at_the_end}

    def say(herd):
        with (herd.directory / "n2" / "sidecar.log").open("a") as log:
            log.write(LINE + chr(10))

    {mark}
    def test_it(herd):
        {in_the_test}

    def test_the_next_one():
        pass
"""
_MARK = "@pytest.mark.expects_trouble('{}', reason='it is planted')"
_DIVERGED = {"event": "node.needs_rebuild", "reason": "a row is missing", "kind": "DivergedError"}


def outcomes(
    pytester: pytest.Pytester, *, mark: str = "", in_the_test: str = "pass", at_the_end: str = ""
) -> dict[str, int]:
    """How two tests end, of which the first one has a herd whose log tells of trouble."""
    here = Path(__file__).parents[2]
    paths = f"{here} {here / 'tests'}"
    text = _TESTS.format(line=_DIVERGED, mark=mark, in_the_test=in_the_test, at_the_end=at_the_end)
    pytester.makepyfile(textwrap.dedent(text))
    pytester.makeconftest(
        "from integration.conftest import pytest_runtest_call, pytest_runtest_teardown"
    )
    pytester.makeini(
        f"[pytest]\npythonpath = {paths}\nmarkers =\n    expects_trouble(kind, reason): planted\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    return pytester.runpytest_subprocess().parseoutcomes()


def test_a_test_fails_on_trouble_that_it_does_not_name(pytester: pytest.Pytester) -> None:
    assert outcomes(pytester, in_the_test="say(herd)") == {"failed": 1, "passed": 1}


def test_a_test_passes_with_trouble_of_the_kind_that_it_names(pytester: pytest.Pytester) -> None:
    mark = _MARK.format("DivergedError")
    assert outcomes(pytester, mark=mark, in_the_test="say(herd)") == {"passed": 2}


def test_another_kind_is_not_excused(pytester: pytest.Pytester) -> None:
    mark = _MARK.format("process.crashed")
    found = outcomes(pytester, mark=mark, in_the_test="say(herd)")
    assert found == {"failed": 1, "passed": 1}


def test_trouble_while_a_fixture_ends_counts(pytester: pytest.Pytester) -> None:
    assert outcomes(pytester, at_the_end="say(LocalHerd(tmp_path, 31000))") == {
        "passed": 2,
        "errors": 1,
    }


def test_trouble_in_a_herd_that_is_gone_at_the_end_counts(pytester: pytest.Pytester) -> None:
    body = "say(herd); herd.run('status'); (herd.directory / 'n2' / 'sidecar.log').unlink()"
    assert outcomes(pytester, in_the_test=body) == {"failed": 1, "passed": 1}


@pytest.mark.expects_trouble("DivergedError", reason="this test writes the line itself")
def test_here_the_same_check_is_at_work(work_directory: Path) -> None:
    herd = LocalHerd(work_directory / "made-up", 31000)
    (herd.directory / "n1").mkdir(parents=True)
    (herd.directory / "n1" / "sidecar.log").write_text(json.dumps(_DIVERGED) + "\n")
