"""What ``status`` shows a person."""

import pytest
from pgherd_sidecar.cli import render
from pgherd_sidecar.cli.admin import Status


def status(*without_key: str) -> Status:
    return Status(cluster_id="c", name="n1", state="primary", gid=1, without_key=without_key)


def test_tables_without_a_primary_key_are_named() -> None:
    shown = render.one(status("public.bag", 'public."B"'), as_json=False)
    assert shown.endswith('so updates and deletes are slow: public.bag, public."B"')
    assert "without a primary key" not in render.one(status(), as_json=False)


@pytest.mark.parametrize(("count", "more"), [(10, ""), (11, " and 1 more"), (40, " and 30 more")])
def test_not_more_than_some_of_them(count: int, more: str) -> None:
    shown = render.one(status(*(f"t{i}" for i in range(count))), as_json=False)
    assert shown.endswith(f"t9{more}")
