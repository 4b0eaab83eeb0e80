"""A member's status in the text form that Prometheus reads."""

from collections.abc import Mapping

_LABELLED = {"divergences_total": "kind", "rebuilds_total": "outcome"}
"""Sums by something; its name."""


def to_metrics(status: Mapping[str, object]) -> str:
    """Return the numbers of a status in Prometheus' text format, and its state as a label."""
    label = f'{{member="{_escaped(status.get("name"))}"'
    lines = [f'pgherd_state{label},state="{_escaped(status.get("state"))}"}} 1']
    for key, value in status.items():
        if isinstance(value, int | float):  # True and False are 1 and 0
            lines.append(f"pgherd_{key}{label}}} {value + 0}")
        elif key in _LABELLED and isinstance(value, Mapping):
            lines += [
                f'pgherd_{key}{label},{_LABELLED[key]}="{_escaped(one)}"}} {count}'
                for one, count in sorted(value.items())
            ]
    return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
