"""The membership as a sidecar tells it: who votes, who is fed, who has been heard of.

Answers of other versions may have more fields; they are ignored. Values only.
"""

from pydantic import BaseModel, ConfigDict


class ViewMember(BaseModel):
    """A member as the view names it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    number: int
    disk_id: str = ""
    voter: bool = True
    witness: bool = False
    reader: bool = False
    since: int = 0


class ViewAnswer(BaseModel):
    """Who votes and who is fed, by the newest entry of a member's log that says so."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: int
    members: tuple[ViewMember, ...]

    def member(self, name: str) -> ViewMember | None:
        """The member of this name, if there is one."""
        return next((member for member in self.members if member.name == name), None)


class PeerAnswer(BaseModel):
    """What a sidecar knows of another one.

    Attributes:
        last_seen_s: for how long it has been silent.
        lagging_s: for how long it has flushed nothing though there is something; 0 if not for long.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    role: str | None = None
    lag_bytes: int | None = None
    lag_entries: int | None = None
    last_seen_s: float | None = None
    lagging_s: float | None = None
