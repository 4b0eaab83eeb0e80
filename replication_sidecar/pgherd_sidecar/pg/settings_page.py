"""Writes ``docs/settings.md``: ``python -m pgherd_sidecar.pg.settings_page > docs/settings.md``.

The page says nothing that ``settings`` does not know. Keeps nothing.
"""

import sys

from pgherd_sidecar.pg.settings import HARMLESS, HARMLESS_EXTENSIONS, SETTINGS, Setting

_LINE_MAX = 100
_BEGINNING = """\
# Settings of sessions

*This page is written by `python -m pgherd_sidecar.pg.settings_page`; a test compares them.*

Each session may have settings of its own, each role and each database, too. A member stores what
sessions of other members have computed, and computes a little by itself. This page lists every
setting of PostgreSQL 15 to 18 that an ordinary user or a superuser may change, with what is done
about it.

- **fixed** means: each session of ours begins with this value, whatever roles, databases and the
  server are set to.
- **carried** means: the setting travels with each command, which is executed under it.

`tests/integration/test_border_settings.py` asks the running server for its settings, and fails on
one that is not listed here. So a new version of PostgreSQL waits for somebody to decide.

## What could make members differ

`pytest tests/integration/test_border_settings.py -k NAME` tests each of these: one member writes
rows and executes commands under the extremes of the setting, and all members are compared.

| Setting | It could change | What is done |
| --- | --- | --- |
"""
_COMPRESSION = """
**Compression.** PostgreSQL compresses a large key before it puts it into an index, by the method of
its column, or else by `default_toast_compression`. One method may make a key fit that is too large
by the other. The other members compress with `pglz`, or by the method of the column, and try the
other method where a row does not fit. A new index is refused (`0A000`) where a session has
compressed a value otherwise. So is a row whose value in an index was copied, compressed, from a
column with another `COMPRESSION`, and one whose copied values in indexes need one method each.

**Locales.** A command that is executed under an `lc_monetary`, `lc_numeric` or `lc_time` which
another machine lacks stops that member. So do a collation, a time zone and a dictionary that it
lacks. Have the same packages on all machines.

## What cannot
"""


def page() -> str:
    """Return the page."""
    rows = [
        f"| {_version(one)} | {one.reaches} | {_done(one)} |"
        for one in sorted(SETTINGS, key=lambda one: one.name.lower())
    ]
    lists = [
        f"\n**{_capital(reason)}.**\n{_wrapped(names.split())}"
        for reason, names in HARMLESS.items()
    ]
    extensions = [f"- `{name}.*`: {reason}" for name, reason in HARMLESS_EXTENSIONS.items()]
    return "\n".join(
        [
            _BEGINNING + "\n".join(rows),
            _COMPRESSION + "\n".join(lists),
            "\n**Of extensions**, by the first word:\n",
            *extensions,
            "",
        ]
    )


def _version(one: Setting) -> str:
    return f"`{one.name}`" + (f" ({one.since})" if one.since > 15 else "")


def _done(one: Setting) -> str:
    parts = []
    if one.fixed is not None:
        parts.append(f"fixed: `{one.fixed}`" if one.fixed else "fixed: empty")
    if one.carried:
        parts.append("carried")
    return "; ".join(part for part in (*parts, one.also) if part)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _wrapped(names: list[str]) -> str:
    lines = [""]
    for name in (f"`{name}`" for name in sorted(names)):
        if len(lines[-1]) + len(name) + 2 > _LINE_MAX:
            lines.append("")
        lines[-1] += f"{name}, "
    return "\n".join(line.rstrip() for line in lines).rstrip(",")


if __name__ == "__main__":
    sys.stdout.write(page())
