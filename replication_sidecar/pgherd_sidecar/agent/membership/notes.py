"""Notes that a member must not lose about its standing: short texts, a file each in ``data_dir``.

All of it survives a restart.
"""

from pathlib import Path

from pgherd_sidecar.env.storage import durable

RETIRED = "retired"
"""It has founded a second time, and takes no part any more."""
DEPARTED = "departed"
"""It was a member and is none; an administrator may ask it back."""
SPLIT_AT = "split_at"
"""Its log ended there when it split off: a copy that was under way may hold more than is common."""
SETTINGS = "settings"
"""The settings that never change once there is a log."""


class Note:
    """One of them.

    Attributes:
        text: empty if there is none.

    Args:
        directory: of the member.
        name: one of the above.

    Raises:
        OSError: it can't be read.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        try:
            self.text = (directory / name).read_text()
        except FileNotFoundError:
            self.text = ""

    def write(self, text: str) -> None:
        """Remember it from now on.

        Raises:
            OSError: after a restart it is forgotten.
        """
        self.text = text
        durable.replace(self._directory, self._name, text.encode())

    def clear(self) -> None:
        """Forget it.

        Raises:
            OSError: after a restart it is there again.
        """
        self.text = ""
        durable.remove(self._directory / self._name)
