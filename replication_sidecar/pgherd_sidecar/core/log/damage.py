"""What a member does about damage to its log: asks for blocks, gives others theirs, and says so.

``Damage`` is the part of `LogMember` between its roles (elections.py), which damage may forbid, and
the caller's interface. The search for a block is in mending.py. Free of IO; what survives a restart
is on disk: the damage itself, and `Control.incomplete`.
"""

from pgherd_sidecar.core.log.blocks import Block
from pgherd_sidecar.core.log.effects import Fetch
from pgherd_sidecar.core.log.elections import Elections
from pgherd_sidecar.core.log.messages import Mend, Mended


class Damage(Elections):
    """A member whose log may have holes [D5] or have lost its end [D6]."""

    @property
    def damaged_at(self) -> int:
        """The block that starts here is damaged and has to be mended first; 0 if none is known."""
        return self._mending.position

    @property
    def damaged_for_good(self) -> bool:
        """That block was trimmed, and nobody who can be asked has it [D5]."""
        others = set(self.membership.names) - {self.name}
        return self.damaged_at > 0 and self._mending.in_vain(others)

    @property
    def incomplete(self) -> bool:
        """Damage has ended this log: the member gives no votes until it was fed [D6]."""
        return self._keeper.incomplete

    def damaged(self, position: int, now: float) -> None:
        """Note that the block that starts at `position` can't be read: the others are asked [D5].

        Nothing else changes for them: what this member says of its log is true all the same.
        """
        self._mending.begin(position, now)
        self._ask_for_block(now)

    def mended(self) -> None:
        """Note that the blocks of `Effects.mend` have been written, if they still belonged here."""
        self._mending.end()
        if self._leading is not None:
            self._leading.fetch_again()

    def _ask_for_block(self, now: float) -> None:
        others = [name for name in self.membership.names if name != self.name]
        question = self._mending.ask(others, self._keeper.index, now)
        if question is not None:
            self._effects.send.append(question)

    def _handle_mend(self, sender: str, mend: Mend) -> None:
        index, flushed = self._keeper.index, self._keeper.journal.flushed_position
        if mend.first <= index.base:
            self._effects.send.append((sender, Mended(mend.first, ())))
        elif mend.first <= flushed and index.term_at(mend.first) == mend.term:
            limit = self._limits.fetch
            self._effects.fetch.append(Fetch(sender, self.term, mend.first, limit, mends=True))

    def _give_block(self, fetch: Fetch, blocks: tuple[Block, ...]) -> None:
        """Answer who misses a block: nothing if it was trimmed; not if none starts there."""
        if blocks or fetch.first <= self._keeper.index.base:
            self._effects.send.append((fetch.peer, Mended(fetch.first, blocks)))
