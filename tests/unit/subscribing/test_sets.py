"""Which tables a pattern means."""

import pytest
from pgherd_sidecar.subscribing.state.sets import matching

_NAMES = [
    "public.t", "sales.item", "sales.order_1", '"Odd name".item', 'sales."a.b"', '"sales.a".b',
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("sales.*", ["sales.item", "sales.order_1", 'sales."a.b"']),
        ("*.item", ["sales.item", '"Odd name".item']),
        ("t", ["public.t"]),
        ("item", []),
        ("sales.order_*", ["sales.order_1"]),
        ("sales.order_.", []),
        ('"Odd name".*', ['"Odd name".item']),
        ('sales."a.b"', ['sales."a.b"']),
        ('"sales.a".*', ['"sales.a".b']),
        ('"sales.a.b"', []),
    ],
)
def test_a_pattern_means_whole_names(pattern: str, names: list[str]) -> None:
    assert matching([pattern], _NAMES) == {pattern: names}
