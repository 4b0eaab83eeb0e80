"""Each statement of the paper beside the finding of this machine, as text. Pure."""

from collections.abc import Callable, Mapping

from benchmarks.evaluation.paper import CROSSOVER_TPS
from benchmarks.evaluation.plan import PAPER_NODES, PLAIN
from benchmarks.evaluation.record import Measurement, Record

HERD = f"herd{PAPER_NODES}"
LARGER = "herd10"
MISSING = "not measured"

Places = Mapping[tuple[str, float], Measurement]


def found(record: Record, name: str) -> str:
    """Return what the record says of a claim.

    Args:
        record: All that was measured.
        name: The claim's.
    """
    return FINDERS[name](record)


def _plain_slowest(record: Record) -> str:
    places = record.of("tpcw")
    shared = _shared(places, PLAIN, HERD)
    if not shared:
        return MISSING
    x = shared[-1]
    parts = [
        f"{label} {_ms(places[system, x], kind)}"
        for kind in ("queries", "updates")
        for label, system in (("one server", PLAIN), ("5", HERD), ("10", LARGER))
        if (system, x) in places
    ]
    half = len(parts) // 2
    return (
        f"at {x:g} a second, queries: {', '.join(parts[:half])}; updates: {', '.join(parts[half:])}"
    )


def _ten_beats_five(record: Record) -> str:
    places = record.of("tpcw")
    shared = _shared(places, HERD, LARGER)
    if not shared:
        return MISSING
    parts = []
    for kind in ("queries", "updates"):
        faster = [x for x in shared if _faster(places[LARGER, x], places[HERD, x], kind)]
        parts.append(f"10 were faster in {kind} at {len(faster)} of {len(shared)} loads")
    return "; ".join(parts)


def _tpcw_aborts(record: Record) -> str:
    rates = [one.abort_rate for one in record.of("tpcw").values()]
    return f"at most {max(rates):.2%}" if rates else MISSING


def _overhead(record: Record) -> str:
    places = record.of("overhead")
    one, other = places.get((PLAIN, 1)), places.get((HERD, 1))
    if one is None or other is None or not (one.mean_ms and other.mean_ms):
        return MISSING
    return f"{other.mean_ms['updates'] - one.mean_ms['updates']:.1f} ms more"


def _five_clients(record: Record) -> str:
    places = record.of("updates", "5 clients")
    shared = _shared(places, PLAIN, HERD)
    if not shared:
        return MISSING
    faster = [x for x in shared if _faster(places[PLAIN, x], places[HERD, x], "updates")]
    return f"one server was faster at {len(faster)} of {len(shared)} loads"


def _twenty_clients(record: Record) -> str:
    places = record.of("updates", "20 clients")
    shared = _shared(places, PLAIN, HERD)
    if not shared:
        return MISSING
    ahead = [x for x in shared if _faster(places[HERD, x], places[PLAIN, x], "updates")]
    above = [x for x in shared if x > CROSSOVER_TPS]
    won = len(set(ahead) & set(above))
    return f"5 replicas were faster at {won} of {len(above)} loads above {CROSSOVER_TPS} tps"


def _herd_aborts(record: Record) -> str:
    rates = [one.abort_rate for (system, _), one in record.of("updates").items() if system == HERD]
    return f"{min(rates):.1%} to {max(rates):.1%}" if rates else MISSING


def _plain_aborts(record: Record) -> str:
    places = record.of("updates", "20 clients")
    rates = [(x, one.abort_rate) for (system, x), one in places.items() if system == PLAIN]
    parts = [f"{rate:.1%} at {x:g} tps" for x, rate in sorted(rates)]
    return ", ".join(parts) if parts else MISSING


FINDERS: dict[str, Callable[[Record], str]] = {
    "plain-slowest": _plain_slowest,
    "ten-beats-five": _ten_beats_five,
    "aborts": _tpcw_aborts,
    "overhead": _overhead,
    "five-clients": _five_clients,
    "twenty-clients": _twenty_clients,
    "herd-aborts": _herd_aborts,
    "plain-aborts": _plain_aborts,
}


def _shared(places: Places, *systems: str) -> list[float]:
    """Return where all of these systems were measured, in order."""
    at = [{x for system, x in places if system == name} for name in systems]
    return sorted(set.intersection(*at))


def _faster(one: Measurement, other: Measurement, kind: str) -> bool:
    return one.mean_ms.get(kind, float("inf")) < other.mean_ms.get(kind, float("inf"))


def _ms(one: Measurement, kind: str) -> str:
    return f"{one.mean_ms[kind]:.1f} ms" if kind in one.mean_ms else "none"
