"""Votes on commands: who is asked again, and what answers mean. No member is needed."""

from array import array
from collections.abc import Callable, Iterable

import msgspec
import pytest
from pgherd_sidecar.agent.hook import voting
from pgherd_sidecar.agent.hook.voting import Veto, Voting
from pgherd_sidecar.pg.ddl.needs import NEEDS_MAX, Ballot, Need, Poll

KEYS = array("q", [4, 1, 70, 9, 2, 71, 72])
COLLATION = Need("collation", '"sv_SE"')
TRIED = Need("command", "CREATE EXTENSION e")


class Others:
    """Members that answer as a test says."""

    def __init__(self, **ballots: Ballot | None) -> None:
        self.ballots = ballots
        self.asked: list[tuple[list[str], Poll]] = []
        self.link = 1
        self.own = Ballot()
        self.own_from = 0
        self.voting = Voting(self._ask, self.linked, self._answer)

    def linked(self) -> dict[str, int]:
        return dict.fromkeys(self.ballots, self.link)

    async def _answer(self, question: bytes) -> bytes:
        poll = msgspec.json.decode(question, type=Poll)
        assert poll.needs == [COLLATION]
        self.own_from = poll.gid
        return msgspec.json.encode(self.own)

    async def _ask(
        self,
        names: Iterable[str],
        data: bytes,
        longest_s: float,
        *,
        enough: Callable[[bytes], bool],
    ) -> dict[str, bytes]:
        self.asked.append((sorted(names), msgspec.json.decode(data, type=Poll)))
        said = {
            name: msgspec.json.encode(ballot)
            for name, ballot in self.ballots.items()
            if ballot is not None and name in names
        }
        assert [enough(one) for one in said.values()] == [
            bool((self.ballots[name] or Ballot()).veto) for name in said
        ]
        return said

    async def vote(self, *needs: Need) -> Veto | None:
        verdicts: list[Veto | None] = []
        self.voting.begin_vote(KEYS, list(needs), verdicts.append)
        for task in list(self.voting._running):
            await task
        (verdict,) = verdicts
        return verdict


async def test_the_transaction_goes_on_if_nobody_objects() -> None:
    others = Others(n2=Ballot(), n3=Ballot())
    assert await others.vote(COLLATION, TRIED) is None
    assert others.asked == [(["n2", "n3"], Poll(9, [COLLATION, TRIED]))]


async def test_one_that_cannot_is_named() -> None:
    others = Others(n2=Ballot(), n3=Ballot("it lacks e"))
    assert await others.vote(TRIED) == Veto("n3", "it lacks e")


async def test_what_is_a_name_by_the_looks_of_it_only_is_no_veto() -> None:
    others = Others(n2=Ballot("it lacks it", need=1, gid=12))
    others.own = Ballot("it lacks it, too")
    assert await others.vote(TRIED, COLLATION) is None
    assert others.own_from == 12  # as of what the other had read: it may have been dropped
    others.own = Ballot()
    assert await others.vote(TRIED, COLLATION) == Veto("n2", "it lacks it")


async def test_what_all_had_lately_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(n2=Ballot(), n3=Ballot())
    assert await others.vote(COLLATION) is None
    assert await others.vote(COLLATION) is None
    assert len(others.asked) == 1
    monkeypatch.setattr(voting, "_KNOWN_S", 0.0)
    assert await others.vote(COLLATION) is None
    assert len(others.asked) == 2


async def test_a_new_member_is_asked_and_no_other() -> None:
    others = Others(n2=Ballot())
    await others.vote(COLLATION)
    others.ballots["n4"] = Ballot()
    await others.vote(COLLATION)
    assert [names for names, _ in others.asked] == [["n2"], ["n4"]]


async def test_another_machine_may_have_come_behind_a_new_link() -> None:
    others = Others(n2=Ballot())
    await others.vote(COLLATION)
    others.link = 2
    others.ballots["n2"] = Ballot("it lacks it")
    assert await others.vote(COLLATION) == Veto("n2", "it lacks it")


async def test_a_statement_is_tried_each_time() -> None:
    others = Others(n2=Ballot())
    await others.vote(TRIED)
    await others.vote(TRIED)
    assert len(others.asked) == 2


@pytest.mark.parametrize("ballot", [None, Ballot(sure=False), Ballot(sure=False, slow=True)])
async def test_who_does_not_say_keeps_nothing_back_and_is_asked_again(
    ballot: Ballot | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others(n2=ballot)
    assert await others.vote(COLLATION) is None
    if ballot is None or ballot.slow:
        assert await others.vote(COLLATION) is None
        assert len(others.asked) == 1  # nobody waits for it twice in a row
        monkeypatch.setattr(others.voting, "_rests", {})
    others.ballots["n2"] = Ballot("it lacks it")
    assert await others.vote(COLLATION) == Veto("n2", "it lacks it")
    assert await others.vote(COLLATION) == Veto("n2", "it lacks it")


async def test_nobody_else_is_there() -> None:
    others = Others()
    assert await others.vote(TRIED) is None
    assert others.asked == []


@pytest.mark.parametrize(
    "needs",
    [
        [Need("collation", f'"c{number}"') for number in range(NEEDS_MAX + 1)],
        [Need("collation", '"c"', path="p" * (1 << 20))],
    ],
    ids=["many", "long"],
)
async def test_nobody_is_asked_too_much(needs: list[Need]) -> None:
    others = Others(n2=Ballot("it lacks it"))
    assert await others.vote(*needs) is None
    assert others.asked == []


async def test_a_vote_that_fails_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    others = Others(n2=Ballot())

    async def fail(*_: object, **__: object) -> None:
        raise OSError("no more sockets")

    monkeypatch.setattr(others.voting, "_ask", fail)
    assert await others.vote(TRIED) is None
