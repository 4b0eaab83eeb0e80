"""What ``status`` shows a person."""

import pytest
from pgherd_sidecar.cli.shared import render
from pgherd_sidecar.client.answers import LongCommandAnswer, Status


def status(*without_key: str) -> Status:
    return Status(cluster_id="c", name="n1", state="primary", gid=1, without_key=without_key)


def test_tables_without_a_primary_key_are_named() -> None:
    shown = render.one(status("public.bag", 'public."B"'), as_json=False)
    assert shown.endswith('so updates and deletes are slow: public.bag, public."B"')
    assert "without a primary key" not in render.one(status(), as_json=False)


def test_an_index_that_is_being_built_is_named_with_what_the_member_does() -> None:
    one = LongCommandAnswer(index="public.i", table="public.t", origin="n2", phase="building index")
    said = status().model_copy(update={"long_commands": (one,)})
    line = "being built: index public.i of public.t, for a client of n2: n1"
    assert render.one(said, as_json=False).endswith(f"{line} building index")
    here = said.model_copy(update={"long_commands": (one.model_copy(update={"here": True}),)})
    assert render.one(here, as_json=False).endswith(f"{line} has it")
    dropped = one.model_copy(update={"kind": "drop", "here": True})
    said = status().model_copy(update={"long_commands": (dropped,)})
    assert render.one(said, as_json=False).endswith(
        "being dropped: index public.i of public.t, for a client of n2: n1 has dropped it"
    )


@pytest.mark.parametrize(("count", "more"), [(10, ""), (11, " and 1 more"), (40, " and 30 more")])
def test_not_more_than_some_of_them(count: int, more: str) -> None:
    shown = render.one(status(*(f"t{i}" for i in range(count))), as_json=False)
    assert shown.endswith(f"t9{more}")


def test_the_way_of_capture_is_told_with_the_reason() -> None:
    said = status().model_copy(update={"capture": "native"})
    assert render.one(said, as_json=False).endswith("capture: native on n1")
    said = said.model_copy(update={"capture": "sql", "capture_reason": "it is configured so"})
    assert render.one(said, as_json=False).endswith("capture: sql on n1 (it is configured so)")
