"""Writes what the consistency job found: JSON for programs, Parquet for analysis, HTML to look at.

``report.json`` is written last: a directory without it holds no whole report.
"""

import html
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgherd_sidecar.env.storage import durable

from pgherd_spark.checking.findings import DefinitionDifference, Findings, RowDifference

if TYPE_CHECKING:
    from pgherd_spark.reading.cluster import Cluster

FORMAT = 1
_ROWS = (
    "gid bigint, table string, key string, member string, present boolean, odd boolean,"
    " differing_columns array<string>, row map<string,string>"
)
_DEFINITIONS = "gid bigint, kind string, name string, member string, definition string, odd boolean"
_TABLES = (
    "gid bigint, table string, verdict string, rows map<string,bigint>, different_buckets int,"
    " different_rows bigint, more boolean, reason string"
)
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>pgherd check: {verdict} at GID {gid}</title>
<style>body{{font-family:sans-serif;margin:2em;max-width:70em}} table{{border-collapse:collapse}}
td,th{{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}}
.different,.odd{{background:#fdd}} .incomplete{{background:#ffd}}</style>
<h1>{verdict} at GID {gid}</h1>
<p>{members}. From {started} to {finished} UTC.</p>
{body}
</html>
"""


def as_json(findings: Findings) -> dict[str, Any]:
    """Return the report as it is written to ``report.json``."""
    return {
        "format": FORMAT,
        "verdict": findings.verdict,
        "odd_members": findings.odd_members,
        **asdict(findings),
        "unread": findings.unread,
        "started": findings.started.isoformat(),
        "finished": findings.finished.isoformat(),
        "tables": [asdict(one) | {"verdict": one.verdict} for one in findings.tables],
    }


def write(cluster: "Cluster", findings: Findings, directory: Path) -> None:
    """Write all three into a directory, which is made if need be.

    Args:
        cluster: writes Parquet.
        findings: what to write.
        directory: for this report alone, and for its owner if it has to be made; an older report in
            it is replaced.

    Raises:
        OSError, JobError: it can't be written.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / "report.json").unlink(missing_ok=True)
    gid = findings.gid
    cluster.write_parquet(
        directory / "tables.parquet",
        [
            (
                *(gid, one.name, one.verdict, dict(one.rows), one.different_buckets),
                *(one.different_rows, one.more, one.reason),
            )
            for one in findings.tables
        ],
        _TABLES,
    )
    cluster.write_parquet(
        directory / "rows.parquet",
        [
            (
                *(gid, row.table, row.key, member, version is not None, member in row.odd),
                *(list(row.columns), None if version is None else dict(version)),
            )
            for row in findings.rows
            for member, version in row.versions.items()
        ],
        _ROWS,
    )
    cluster.write_parquet(
        directory / "definitions.parquet",
        [
            (gid, one.kind, one.name, member, text, member in one.odd)
            for one in findings.definitions
            for member, text in one.versions.items()
        ],
        _DEFINITIONS,
    )
    durable.replace(directory, "report.html", to_html(findings).encode())
    durable.replace(directory, "report.json", json.dumps(as_json(findings), indent=1).encode())


def to_html(findings: Findings) -> str:
    """Return the page: what differs first, then every table."""
    body = [
        *_section("Definitions that differ", [_definition(one) for one in findings.definitions]),
        *_section("Rows that differ", [_row(one) for one in findings.rows]),
        *_section(
            "Defined anew during the check, not compared",
            [f"<tr><td>{_text(name)}</td></tr>" for name in findings.changing],
        ),
        *_section(
            "Not compared",
            [
                f"<tr><td>{_text(name)}</td></tr>"
                for name in (*findings.left_out, *findings.unread, *findings.beyond)
            ],
        ),
        *_section(
            "Tables",
            ["<tr><th>table<th>verdict<th>rows<th>rows that differ<th>why not compared</tr>"]
            + [
                f'<tr class="{one.verdict}"><td>{_text(one.name)}<td>{one.verdict}'
                f"<td>{_text(_counts(one.rows))}<td>{one.different_rows}{'+' * one.more}"
                f"<td>{_text(one.reason or '')}</tr>"
                for one in findings.tables
            ],
        ),
        *_section(
            "Rows not replicated, not compared",
            [f"<tr><td>{_text(name)}</td></tr>" for name in findings.not_replicated],
        ),
    ]
    return _PAGE.format(
        verdict=findings.verdict,
        gid=findings.gid,
        members=_text(", ".join(findings.members)),
        started=f"{findings.started:%Y-%m-%d %H:%M:%S}",
        finished=f"{findings.finished:%H:%M:%S}",
        body="\n".join(body),
    )


def _section(title: str, rows: list[str]) -> list[str]:
    return [f"<h2>{title}</h2>", "<table>", *rows, "</table>"] if rows else []


def _definition(one: DefinitionDifference) -> str:
    return _versions(f"{one.kind} {one.name}", one.versions, one.odd)


def _row(one: RowDifference) -> str:
    shown = one.columns or one.key_columns
    texts = {
        member: None if row is None else ", ".join(f"{column} = {row[column]}" for column in shown)
        for member, row in one.versions.items()
    }
    return _versions(f"{one.table} {one.key}", texts, one.odd)


def _versions(title: str, versions: Any, odd: tuple[str, ...]) -> str:
    cells = "".join(
        f'<td class="{"odd" if member in odd else ""}">{_text(member)}: '
        f"{'<i>missing</i>' if text is None else _text(text)}"
        for member, text in versions.items()
    )
    return f"<tr><td>{_text(title)}{cells}</tr>"


def _counts(rows: Any) -> str:
    """One number where all have it, else each member's."""
    if len(set(rows.values())) == 1:
        return str(next(iter(rows.values())))
    return ", ".join(f"{member}: {count}" for member, count in rows.items())


def _text(text: str) -> str:
    return html.escape(text)
