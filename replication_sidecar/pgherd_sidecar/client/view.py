"""The membership as a sidecar tells it: who votes, who is fed, who has been heard of."""

from pgherd_sidecar.client.answerbase import AnswerBase


class ViewMember(AnswerBase):
    """A member as the view names it."""

    name: str
    number: int
    disk_id: str = ""
    voter: bool = True
    witness: bool = False
    reader: bool = False
    since: int = 0


class ViewAnswer(AnswerBase):
    """Who votes and who is fed, by the newest entry of a member's log that says so."""

    id: int
    members: tuple[ViewMember, ...]

    def member(self, name: str) -> ViewMember | None:
        """The member of this name, if there is one."""
        return next((member for member in self.members if member.name == name), None)


class PeerAnswer(AnswerBase):
    """What a sidecar knows of another one.

    Attributes:
        last_seen_s: for how long it has been silent.
        lagging_s: for how long it has flushed nothing though there is something; 0 if not for long.
    """

    role: str | None = None
    lag_bytes: int | None = None
    lag_entries: int | None = None
    last_seen_s: float | None = None
    lagging_s: float | None = None
