"""The command that compares all members, wherever they run: its options, and what it tells."""

from collections.abc import Callable

import click

from pgherd_sidecar.cli.shared import options
from pgherd_sidecar.lazily import lazily

with lazily():
    from pgherd_sidecar.cli.shared import render
    from pgherd_sidecar.local.operations import verify


def comparison(command: Callable[..., None]) -> Callable[..., None]:
    """The options of ``verify``: ``allow_missing``, ``max_keys``, ``timeout_s`` and ``as_json``."""
    missing = click.option("--allow-missing", is_flag=True, help="Leave out who takes no writes.")
    keys = click.option(
        "--max-keys", type=click.IntRange(min=1), default=100, show_default=True,
        help="Differing keys to list for each table.",
    )  # fmt: skip
    return missing(keys(options.timeout(600)(options.as_json(command))))


def tell(found: "verify.Comparison", *, as_json: bool) -> None:
    """Print what was found; the exit status is ``DIFFERENT`` where the members are."""
    click.echo((render.comparison_json if as_json else render.comparison)(found))
    if not found.identical:
        raise SystemExit(verify.DIFFERENT)
