"""A member's status in the text form that Prometheus reads."""

from collections.abc import Mapping


def to_metrics(status: Mapping[str, object]) -> str:
    """Return the numbers of a status in Prometheus' text format, and its state as a label."""
    label = f'{{member="{_escaped(status.get("name"))}"'
    lines = [f'pgherd_state{label},state="{_escaped(status.get("state"))}"}} 1']
    for key, value in status.items():
        if isinstance(value, int | float):  # True and False are 1 and 0
            lines.append(f"pgherd_{key}{label}}} {value + 0}")
    return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
