"""A naive twin of ``core.replication.databases``: the same rules, as plainly as can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pgherd_sidecar.core.replication.entries import (
    STATE_ASKED,
    STATE_PAUSE,
    STATE_STOPPED,
    Condition,
    DatabaseState,
    Entry,
    Members,
    Skip,
)

WHOLE, DIVERGED = Condition.WHOLE, Condition.DIVERGED
REBUILDING, FAILED = Condition.REBUILDING, Condition.FAILED


@dataclass
class Twin:
    """The rules once more, from the whole history each time, as slowly as can be."""

    members: dict[int, dict[str, object]]
    history: list[tuple[str, int, int]] = field(default_factory=list)
    held_since: int | None = None

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Twin:
        """Members whose databases are whole."""
        fresh = {"is": WHOLE, "since": 0, "bad": False, "gid": 0, "own": False, "mark": ""}
        return cls({number: dict(fresh) for number in numbers})

    def deliver(self, position: int, entry: Entry) -> None:
        """Take the next entry."""
        match entry:
            case Members(numbers):
                fresh = {
                    "is": REBUILDING,
                    "since": position,
                    "bad": False,
                    "gid": 0,
                    "own": False,
                    "mark": "",
                }
                self.members = {n: self.members.get(n, dict(fresh)) for n in numbers}
            case Skip(gid):
                stopped = [n for n, m in self.members.items() if m["own"] and m["gid"] == gid]
                for number, member in self.members.items():
                    if stopped and number in stopped:
                        member.update(
                            {"is": WHOLE, "gid": 0, "bad": False, "own": False, "mark": ""}
                        )
                        member["since"] = position
                    elif stopped and member["is"] == WHOLE:
                        member.update({"is": DIVERGED, "gid": gid, "since": position})
                        member["mark"] = "skipped"
            case DatabaseState():
                self.state(position, entry)
        whole = [n for n, m in self.members.items() if m["is"] == WHOLE]
        bad = [m for m in self.members.values() if m["is"] == FAILED or m["bad"]]
        if len(self.members) < 2 or len(whole) >= 2:
            self.held_since = None
        elif self.held_since is None and (bad or not whole):
            self.held_since = position

    def state(self, position: int, entry: DatabaseState) -> None:
        """Take what a member says."""
        member = self.members.get(entry.member)
        if member is None or member["since"] != entry.after:
            return
        marked = member["is"] in {DIVERGED, FAILED} and member["mark"] == "skipped"
        if marked and entry.condition == DIVERGED:
            return
        asked = bool(entry.flags & STATE_ASKED)
        if entry.condition == REBUILDING and self.held_since is not None and not asked:
            return
        others = [n for n, m in self.members.items() if m["is"] == WHOLE and n != entry.member]
        if entry.condition == REBUILDING and member["own"] and not others:
            return
        member["since"], member["is"] = position, entry.condition
        if entry.condition in {WHOLE, DIVERGED} or entry.cause:
            member["mark"] = ""
        if entry.cause or entry.condition == DIVERGED:
            member["gid"] = entry.gid
        if entry.condition == WHOLE:
            member.update(gid=0, bad=False, own=False)
        elif entry.condition == DIVERGED:
            again = [
                1
                for cause, gid, at_s in self.history
                if cause == entry.cause and gid != entry.gid and entry.at_s <= at_s + entry.within_s
            ]
            near = [
                1
                for cause, gid, at_s in self.history
                if (cause, gid) == (entry.cause, entry.gid) and entry.at_s <= at_s + entry.within_s
            ]
            if not near:
                self.history.append((entry.cause, entry.gid, entry.at_s))
            member["own"] = True
            member["bad"] = bool(again) or bool(entry.flags & STATE_PAUSE)
        elif entry.condition == REBUILDING:
            member["own"] = False
            member["bad"] = bool(member["bad"]) and not asked
        else:
            member["own"] = bool(entry.flags & STATE_STOPPED)
