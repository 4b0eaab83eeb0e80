"""``pgherd top``: what is drawn of two answers, and how it is asked for and ended."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest
from pgherd_sidecar.cli import top
from pgherd_sidecar.cli.top import Sample, TopOptions, frame, percentile
from pgherd_sidecar.client import cluster
from pgherd_sidecar.client.admin import AdminClient
from pgherd_sidecar.client.answers import Status
from pgherd_sidecar.client.errors import HerdError

VIEW = {
    "id": 1,
    "members": [{"name": name, "number": n} for n, name in enumerate(("n1", "n2", "w1"), 1)],
}
HOT = {"table": "public.account", "key": "00ff", "count": 4, "gid": 90}


def said(name: str = "n1", **more: Any) -> Status:
    fields: dict[str, Any] = {
        "name": name,
        "cluster_id": "c1",
        "state": "primary",
        "role": "proposer",
        "component": "primary",
        "proposer": "n1",
        "term": 2,
        "gid": 100,
        "view": VIEW,
        "peers": {"n2": {"role": "follower", "lag_entries": 12, "last_seen_s": 3.4}},
        "own_commits": 10,
        "own_conflicts": 1,
        "commit_waits": {"0.001": 10},
        "lag_entries": 0,
        "apply_queue_bytes": 0,
        "pending": 2,
        "victims": 5,
        "log_bytes": 33_554_432,
    }
    return Status.model_validate(fields | more)


def sample(at_s: float, *answers: Status) -> Sample:
    return Sample(at_s, ("n1", "n2", "w1"), {one.name: one for one in answers})


def row(lines: list[str], name: str) -> list[str]:
    """The cells of a member's line, by two blanks or more between them."""
    (line,) = [line for line in lines if line.startswith(f"{name} ")]
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_rates_and_percentiles_are_of_the_time_between_two_answers() -> None:
    now = said(own_commits=110, own_conflicts=5, commit_waits={"0.001": 60, "0.004": 48, "0.1": 2})
    lines = frame(sample(0, said()), sample(2, now))
    assert "50 commits/s   2.0 conflicts/s" in lines[1]
    assert row(lines, "n1") == [
        "n1", "primary", "proposer", "50", "2.0", "1.0", "4.0", "100.0",
        "0 entries", "0 B", "2", "5", "100", "34 MB",
    ]  # fmt: skip


def test_nothing_is_invented_where_nothing_was_committed() -> None:
    assert row(frame(sample(0, said()), sample(1, said())), "n1")[3:8] == [
        "0",
        "0.0",
        "-",
        "-",
        "-",
    ]


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    now = said(own_commits=3, own_conflicts=0, commit_waits={"0.002": 3})
    assert row(frame(sample(0, said()), sample(1, now)), "n1")[3:6] == ["3", "0.0", "2.0"]


def test_who_answers_for_the_first_time_has_no_rate_yet() -> None:
    lines = frame(sample(0), sample(1, said()))
    assert row(lines, "n1")[3:6] == ["0", "0.0", "-"]


def test_who_does_not_answer_is_shown_as_others_see_it() -> None:
    lines = frame(sample(0, said()), sample(1, said()))
    assert "2 not asked or not answering" in lines[1]
    assert row(lines, "n2")[:3] == ["n2", "heard 3.4 s ago", "follower"]
    assert "12 entries" in row(lines, "n2")


def test_a_witness_has_no_commits() -> None:
    witness = said("w1", state="witness", own_commits=None, own_conflicts=None, victims=None)
    lines = frame(sample(0, witness), sample(1, witness))
    assert row(lines, "w1")[1:4] == ["witness", "proposer", "-"]


def test_a_reason_is_told() -> None:
    lines = frame(sample(0), sample(1, said(state="secondary", reason="it has no majority")))
    assert "n1: it has no majority" in lines


def test_the_hottest_keys_are_those_of_now_of_all_members() -> None:
    cold = HOT | {"key": "0001", "count": 1000}
    before = [said(name, hot_keys=[cold, HOT]) for name in ("n1", "n2")]
    hot = HOT | {"count": 10, "gid": 99}
    now = [said(name, hot_keys=[cold, hot]) for name in ("n1", "n2")]
    lines = frame(sample(0, *before), sample(2, *now))
    assert [line.split() for line in lines[-2:]] == [
        ["public.account", "00ff", "6.0", "20", "99"],
        ["public.account", "0001", "0.0", "2,000", "90"],
    ]


def test_without_conflicts_there_is_no_table_of_them() -> None:
    assert not any("KEY" in line for line in frame(sample(0, said()), sample(1, said())))


def test_an_earlier_sidecar_tells_less() -> None:
    fields = {"name": "n1", "cluster_id": "c1", "state": "primary"}
    old = Status.model_validate(fields)
    assert row(frame(sample(0, old), sample(1, old)), "n1")[3:8] == ["-"] * 5


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({}, (None, None)),
        ({0.001: 1}, (0.001, 0.001)),
        ({0.001: 98, 0.5: 2}, (0.001, 0.5)),
        ({0.001: 99, 0.5: 1}, (0.001, 0.001)),
    ],
)
def test_percentiles(waits: Mapping[float, int], expected: tuple[float, float]) -> None:
    assert (percentile(waits, 0.5), percentile(waits, 0.99)) == expected


def listen_to(*answers: Status) -> cluster.Listen:
    async def listen() -> list[cluster.Voice]:
        return [cluster.Voice(AdminClient("/nowhere"), one) for one in answers]  # type: ignore[arg-type]

    return listen


async def test_once_it_prints_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    await top.top(listen_to(said()), TopOptions(0.01, once=True, names=("n1", "n9")))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "n9" in out


async def test_when_nobody_answers_it_says_what_to_do() -> None:
    with pytest.raises(HerdError, match="start the herd"):
        await top.top(listen_to(), TopOptions(0.01, once=False))


# A shell that starts the tests in the background has them ignore SIGINT.
PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from test_top import listen_to, said
from pgherd_sidecar.cli import top
from pgherd_sidecar.cli.shared import options
options.run(top.top(listen_to(said()), top.TopOptions(0.05, once=False)))
"""


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_a_key_ends_it_and_the_terminal_is_as_before(key: bytes) -> None:
    ours, theirs = pty.openpty()
    program = PROGRAM.format(tests=os.path.dirname(__file__))  # noqa: PTH120 - a text
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            seen = read_until(ours, b"q ends")
            os.write(ours, key)
            seen += read_until(ours, b"\x1b[?1049l")
            process.wait(30)
        finally:
            os.close(ours)  # hangs up, should it still run
    assert process.returncode == 0, seen
    assert b"Traceback" not in seen
    assert seen.index(b"\x1b[?1049h") < seen.index(b"n1 ") < seen.index(b"\x1b[?25h")


def read_until(terminal: int, wanted: bytes) -> bytes:
    seen, limit = b"", time.monotonic() + 60
    while wanted not in seen:
        assert select.select([terminal], [], [], limit - time.monotonic())[0], seen
        seen += os.read(terminal, 4096)
    return seen
