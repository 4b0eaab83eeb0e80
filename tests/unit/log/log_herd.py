"""A few members on an ideal machine: every message and flush is delivered when the story says so.

Nothing happens by itself. `settle` delivers everything that is under way, except on links that
are `cut` and to members that are `down`.
"""

from collections import deque
from dataclasses import replace
from math import inf
from random import Random
from typing import Any

from pgherd_sidecar.core.consensus import (
    Block,
    Control,
    Fetch,
    Limits,
    LogBase,
    LogIndex,
    LogMember,
    Member,
    Membership,
    Message,
    Persist,
    Role,
    Timing,
)

TIMING = Timing(heartbeat_s=0.1, election_min_s=1.0, election_max_s=1.0)


class Machine:
    """One member with its disk."""

    def __init__(self, herd: "Herd", identity: Member, base: LogBase) -> None:
        self.herd = herd
        self.name = identity.name
        self.identity = identity
        self.control = Control()
        self.blocks: list[Block] = []
        self.persist: Persist | None = None
        self.slow_disk = False
        self.base = base
        self.start()

    def start(self) -> None:
        """Start, or restart, on what was flushed."""
        self.persist = None
        index = LogIndex.beginning(self.base)
        for block in self.blocks:
            index.append(block)
        self.member = LogMember(
            self.name,
            control=self.control,
            log=index,
            timing=self.herd.timing,
            rng=Random(1),
            noop=b"noop",
            now=self.herd.now,
            limits=Limits(pending=1000, inflight=200, fetch=100),
            disk=self.identity.disk,
        )

    def lose_disk(self) -> None:
        """Return empty on another disk."""
        self.identity = replace(self.identity, disk=self.identity.disk + "'")
        self.control, self.blocks, self.base = Control(), [], LogBase()
        self.start()

    def flush(self) -> None:
        """Complete the `Persist` that is under way."""
        persist, self.persist = self.persist, None
        assert persist is not None
        self.control = persist.control or self.control
        if persist.truncate_after is not None:
            self.blocks = [b for b in self.blocks if b.last <= persist.truncate_after]
        self.blocks += persist.blocks
        self.member.persisted(persist.ticket, self.herd.now)

    def fetch(self, fetch: Fetch) -> None:
        """Answer a fetch with one block."""
        found = [block for block in self.blocks if block.first == fetch.first]
        self.member.fetched(fetch, tuple(found), self.herd.now)

    @property
    def data(self) -> list[bytes]:
        """What is flushed here, block by block."""
        return [block.data for block in self.blocks]


class Herd:
    """All members, and the messages between them."""

    def __init__(self, count: int, *, evict_s: float = inf, disks: bool = False) -> None:
        self.now = 0.0
        self.timing = replace(TIMING, evict_s=evict_s)
        self.names = [f"n{i}" for i in range(1, count + 1)]
        self.cut: set[tuple[str, str]] = set()
        self.down: set[str] = set()
        self.carried: list[tuple[str, str, Message]] = []
        self.waiting: deque[tuple[str, str, Message]] = deque()
        self.machines: dict[str, Machine] = {}
        members = [Member(name, f"disk of {name}" * disks) for name in self.names]
        base = LogBase(membership=Membership.founded(members))
        for member in members:
            self.machines[member.name] = Machine(self, member, base)

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def add(
        self,
        name: str,
        base: LogBase | None = None,
        *,
        witness: bool = False,
        reader: bool = False,
    ) -> None:
        """Start a machine that is no member yet, on an empty disk."""
        member = Member(name, f"disk of {name}", witness=witness, reader=reader)
        self.names.append(name)
        self.machines[name] = Machine(self, member, base or LogBase())

    def take_effects(self) -> None:
        """Collect what every member wants done."""
        for name, machine in self.machines.items():
            if name in self.down:
                continue
            effects = machine.member.take_effects()
            self.waiting += [(name, peer, message) for peer, message in effects.send]
            if effects.persist is not None:
                machine.persist = effects.persist
            for fetch in effects.fetch:
                machine.fetch(fetch)

    def deliver(self) -> bool:
        """Deliver the oldest message; False if there is none."""
        if not self.waiting:
            return False
        sender, receiver, message = self.waiting.popleft()
        reachable = receiver in self.machines and not {sender, receiver} & self.down
        if reachable and (sender, receiver) not in self.cut:
            self.carried.append((sender, receiver, message))
            self[receiver].member.meet(sender, self[sender].identity.disk)
            self[receiver].member.receive(sender, message, self.now)
        return True

    def settle(self) -> None:
        """Deliver and flush until nothing is under way."""
        self.take_effects()
        busy = True
        while busy:
            busy = self.deliver()
            for name, machine in self.machines.items():
                if machine.persist and not machine.slow_disk and name not in self.down:
                    machine.flush()
                    busy = True
            self.take_effects()
            busy = busy or bool(self.waiting)

    def elect(self, name: str) -> None:
        """Let `name` be the first whose patience ends."""
        self.now += 2
        self[name].member.tick(self.now)
        self.settle()
        assert self[name].member.role is Role.PROPOSER

    def order(self, name: str, data: bytes, count: int = 1) -> None:
        """Have a member submit entries, and let that come to an end."""
        self[name].member.submit(data, count, self.now)
        self.settle()

    def change(self, name: str, seconds: float, **wanted: Any) -> None:
        """Ask a member for a change of the membership, and let time pass."""
        self[name].member.change_membership(**wanted)
        self.pass_time(seconds)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps of a heartbeat, settling at each."""
        end = self.now + seconds
        while self.now < end:
            self.now += TIMING.heartbeat_s
            for name, machine in self.machines.items():
                if name not in self.down:
                    machine.member.tick(self.now)
            self.settle()

    def isolate(self, *names: str) -> None:
        """Cut all links between `names` and the others."""
        others = [name for name in self.names if name not in names]
        self.cut = {pair for a in names for b in others for pair in ((a, b), (b, a))}

    def heal(self) -> None:
        """Repair all links."""
        self.cut = set()

    def kinds(self) -> list[str]:
        """The kinds of the messages carried since this was last asked for."""
        kinds = [type(message).__name__ for _, _, message in self.carried]
        self.carried.clear()
        return kinds


def led_by(name: str, count: int, *, evict_s: float = inf, disks: bool = False) -> Herd:
    """A herd that has elected this member."""
    herd = Herd(count, evict_s=evict_s, disks=disks)
    herd.elect(name)
    return herd
