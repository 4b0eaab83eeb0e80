"""Families of cases that show one rule: the gate runs some of each."""

from collections import Counter

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a family some are for the gate and the others are long."""
    numbers: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("family")
        if mark is not None:
            name = item.nodeid.partition("[")[0]
            if numbers[name] % mark.kwargs["every"]:
                item.add_marker(pytest.mark.long)
            numbers[name] += 1
