"""What kubectl has answered, for the commands of the plugin that call it several times."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import click

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]
"""Calls kubectl with these arguments and captures what it prints."""
LOOK_S = 1.0
"""Pause between two looks at what is waited for."""


def require_done(done: Done) -> Done:
    """Return a process that has succeeded.

    Raises:
        ClickException: it has not; in its own words.
    """
    if done.returncode:
        raise click.ClickException(done.stderr.decode(errors="replace").strip())
    return done


def read_json(done: Done) -> Any:
    """Return the object that a process has printed.

    Raises:
        ClickException: it has failed.
    """
    return json.loads(require_done(done).stdout)
