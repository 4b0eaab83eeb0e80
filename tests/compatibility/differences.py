"""Why a permutation of an isolation test ended otherwise than on a plain server.

A difference has a class only if docs/compatibility.md explains it. The first step that ended
otherwise decides. So no refusal hides a row, a count or another error that differed before it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable

NOT_EXPLAINED = "not explained"
NOT_PLAYED = "not played after:"

SIGNS = {
    "writes at SERIALIZABLE": r"ERROR:  writes at SERIALIZABLE are not supported",
    "40001, a concurrent commit": r"ERROR:  could not serialize .* concurrent commit \(GID",
    "40001, a command goes first": r"ERROR:  could not serialize .* goes first \(GID",
    "DETACH PARTITION CONCURRENTLY": r"ERROR:  DETACH PARTITION CONCURRENTLY is not supported",
    "a renamed TOAST table": r"ERROR:  ALTER TABLE of what PostgreSQL has made for itself",
    "a temporary child": r"ERROR:  .* is temporary, and its parent .* is replicated",
    "a temporary type": r"ERROR:  function .* uses type .*, which is temporary",
    "MERGE between partitions": r"ERROR:  MERGE that may move a row of .* is not supported",
    "no search path": r"ERROR:  index .* uses .*, which has no search path of its own",
    "PREPARE TRANSACTION": r"ERROR:  cannot PREPARE a transaction that has written replicated",
    "the range of a sequence": r"ERROR:  the range of a sequence cannot be changed",
}
"""By class: the line that the herd says, and no plain server, at the first step that differs."""

_NUMBERS = "numbers of a sequence"
_TURN = "the turn of a command"
STEPS = {
    ("drop-index-concurrently-1", frozenset({"select2", "selecti", "selects"})): _NUMBERS,
    ("reindex-concurrently", frozenset({"sel1"})): _NUMBERS,
    ("sequence-ddl", frozenset({"s2nv"})): _NUMBERS,
    ("sequence-ddl", frozenset({"s2nv", "s1alter2"})): _NUMBERS,
    ("tuplelock-update", frozenset({"s1_grablock"})): _NUMBERS,
    ("intra-grant-inplace", frozenset({"sfu3"})): _TURN,
    ("multiple-cic", frozenset({"s1i", "s2i"})): _TURN,
    ("stats", frozenset({"s1_prepare_a", "s1_table_stats"})): "counters of statistics",
}
"""Classes that no line shows, by specification and the steps of a permutation that differ."""


def difference(specification: str, wanted: str, text: str) -> str:
    """Name the class of a difference.

    Args:
        specification: name of it.
        wanted: what the sessions said in a permutation on the plain server.
        text: what they said on the herd, or ``NOT_PLAYED`` and the last that they said there.

    Returns:
        A key of ``SIGNS``, a value of ``STEPS``, or else ``NOT_EXPLAINED``.
    """
    plain, herd = _steps(wanted), _steps(text)
    if text.startswith(NOT_PLAYED):
        return _signed(text.splitlines())
    differing = [step for step in herd | plain if herd.get(step) != plain.get(step)]
    judged = STEPS.get((specification, frozenset(step for step, _ in differing)))
    if judged is not None:
        return judged
    first = next(iter(differing), None)
    if first is None:
        return NOT_EXPLAINED
    known = plain.get(first, "").splitlines()
    return _signed(line for line in herd.get(first, "").splitlines() if line not in known)


def _steps(text: str) -> dict[tuple[str, int], str]:
    """Divide what sessions said among the steps of a permutation, in the order of their ends.

    Returns:
        By name of a step, and the number of steps of that name before it: the lines that followed
        its beginning and, if it waited, its end. Lines before the first step are under "".
    """
    found: dict[tuple[str, int], list[str]] = {("", 0): []}
    waiting: dict[str, tuple[str, int]] = {}
    begun: defaultdict[str, int] = defaultdict(int)
    step = ("", 0)
    for line in text.splitlines():
        begins = re.match(r"step (\w+): (.*)", line)
        if begins and begins[2] == "<... completed>":
            step = waiting.pop(begins[1])
            found[step] = found.pop(step)  # now it is the last
            continue
        if begins:
            step = (begins[1], begun[begins[1]])
            begun[begins[1]] += 1
            found[step] = []
        if line.endswith(" <waiting ...>"):
            waiting[step[0]] = step
        found[step].append(line.removesuffix(" <waiting ...>"))
    return {step: "\n".join(lines).strip("\n") for step, lines in found.items()}


def _signed(lines: Iterable[str]) -> str:
    text = "\n".join(lines)
    return next((name for name, sign in SIGNS.items() if re.search(sign, text)), NOT_EXPLAINED)
