"""The mistakes of the border to PostgreSQL that were mended, and how each is made again."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patch:
    """A text of the sidecar's source, as it is, and as it was.

    Attributes:
        file: below the package.
        mended: as it is; there exactly once.
        broken: in its place.
    """

    file: str
    mended: str
    broken: str


@dataclass(frozen=True, slots=True)
class Plant:
    """A mistake.

    Attributes:
        name: its number, and how the names of its remembered cases begin.
        mistake: what was wrong.
        patches: how it is made again.
    """

    name: str
    mistake: str
    patches: tuple[Patch, ...]


PLANTS: tuple[Plant, ...] = ()
