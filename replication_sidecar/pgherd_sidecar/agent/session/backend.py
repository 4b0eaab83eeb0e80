"""The session of the replica, as far as the hook asks it beyond the commit path."""

from array import array
from collections.abc import Callable, Hashable
from typing import Final

from pgherd_sidecar.agent.commit.settler import Visibility
from pgherd_sidecar.agent.hook.precedence import Precedence
from pgherd_sidecar.agent.hook.showing import Showing
from pgherd_sidecar.agent.hook.voting import Veto, Voting
from pgherd_sidecar.agent.log.host import LogHost
from pgherd_sidecar.agent.session.barriers import Barriers
from pgherd_sidecar.agent.session.longcommands import LongCommands
from pgherd_sidecar.agent.standing.holding import why_held
from pgherd_sidecar.agent.standing.views import PATIENCE_S, no_majority
from pgherd_sidecar.core.replication.state import ReplicatedState
from pgherd_sidecar.pg.ddl.needs import Need

READS_ONLY: Final = "it is a reader: write on a member that votes, or promote it"
"""Why a reader takes no writes when all is well."""


class SessionBackend:
    """See `HookBackend`.

    Args:
        away: names of the members that nobody is to wait for: they are drained.

    Attributes:
        ready: the session has caught up and is open for writes.
        drained: why this member is out of service, which has to do with the member only; None if
            it is not. Transactions under way may end: the hook does not ask.
    """

    def __init__(  # noqa: PLR0913 - what it works with, all by name
        self,
        host: LogHost,
        state: ReplicatedState,
        *,
        visibility: Visibility,
        precedence: Precedence,
        voting: Voting,
        showing: Showing,
        barriers: Barriers,
        long: LongCommands,
        away: set[str],
    ) -> None:
        self.ready = False
        self.drained: str | None = None
        self.away = away
        self._long = long
        self._host = host
        self._state = state
        self._visibility = visibility
        self._precedence = precedence
        self._voting = voting
        self._showing = showing
        self._barriers = barriers

    def refusal(self) -> str | None:
        """See HookBackend."""
        alone = None if self._host.primary else no_majority(self._host)
        if self.ready:
            return alone or (READS_ONLY if self._host.reads_only else self.why_held())
        lacks = alone is not None and self._host.secondary_s >= PATIENCE_S
        return f"it is catching up; {alone}" if lacks else "it is catching up"

    def out_of_service(self) -> str | None:
        """Why no client is to come here, None if all may: it is told to balancers and drivers."""
        refusal = self.refusal()
        return refusal if refusal not in (None, READS_ONLY) else self.drained or refusal

    def why_held(self) -> str | None:
        """Why the herd takes no writes, None if it does."""
        return why_held(self._state.databases, self._host.membership)

    def held(self) -> bool:
        """See HookBackend."""
        held = self._state.databases.hold is not None and not self._host.reads_only
        return self.ready and self._host.primary and held

    def when_visible(self, gid: int, wake: Callable[[], None]) -> None:
        """See HookBackend."""
        self._visibility.when_visible(gid, wake)

    def begin_command(self, xid: int, keys: "array[int]", answer: Callable[[], None]) -> None:
        """See HookBackend."""
        self._precedence.begin_command(xid, keys, answer)

    def when_free(self, xid: int, keys: "array[int]", go: Callable[[], None]) -> None:
        """See HookBackend."""
        self._precedence.when_free(xid, keys, go)

    def vote(
        self, keys: "array[int]", needs: list[Need], answer: Callable[[Veto | None], None]
    ) -> None:
        """See HookBackend."""
        self._voting.begin_vote(keys, needs, answer)

    def announce_drop(self, what: str, answer: Callable[[str, str], None]) -> None:
        """See HookBackend."""
        self._long.announce_drop(what, answer)

    def command_lost(self, keys: "array[int]") -> None:
        """See HookBackend."""
        self._precedence.lost(keys)

    def barrier(
        self, who: Hashable, wait_s: float, answer: Callable[[bytes], None], *, begins: bool
    ) -> None:
        """See HookBackend."""
        take = self._barriers.take_reader if begins else self._barriers.go_on
        take(who, wait_s, answer)

    def when_shown(self, gid: int, rest_s: float, answer: Callable[[bytes], None]) -> None:
        """See HookBackend."""
        self._showing.begin(gid, rest_s, answer)

    def drop_waiter(self, who: Hashable) -> None:
        """See HookBackend."""
        self._barriers.drop_reader(who)

    def end_session(self, pid: int) -> None:
        """See HookBackend."""
        self._visibility.end_session(pid)
