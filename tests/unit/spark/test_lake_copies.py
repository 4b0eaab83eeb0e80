"""Which copy is gone on with: one of the same tables, in the same buckets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pgherd_spark.reading.cluster import Cluster
from pgherd_spark.stream.lake import CURRENT, LakeError, LakeOptions, apply


class NoChanges:
    """A DataFrame without rows, or what is computed of it."""

    def __init__(self, *rows: tuple[None]) -> None:
        self._rows = rows

    def __getitem__(self, _: object) -> Any:
        return self

    def __gt__(self, _: object) -> Any:
        return self

    def __getattr__(self, _: str) -> Any:
        return lambda *_: self

    def collect(self) -> tuple[tuple[None], ...]:
        return self._rows

    def agg(self, _: object) -> "NoChanges":
        return NoChanges((None,))


def gone_on_with(to: Path, buckets: int | None, options: LakeOptions) -> int | None:
    """The GID of the copy after no changes."""
    said = {"gid": 7, "files": {"public.t": {}}}
    (to / CURRENT).write_text(json.dumps(said if buckets is None else said | {"buckets": buckets}))
    found = apply(cast(Cluster, None), options, NoChanges())
    return None if found is None else found.gid


@pytest.mark.parametrize("buckets", [16, None])
def test_a_copy_is_gone_on_with_as_it_was_begun(tmp_path: Path, buckets: int | None) -> None:
    """One that does not say how many buckets it has was made with as many as is usual."""
    assert gone_on_with(tmp_path, buckets, LakeOptions(tmp_path, ("public.t",))) == 7


@pytest.mark.parametrize(
    "options", [{"buckets": 4}, {"tables": ("public.t", "public.u")}, {"tables": ()}]
)
def test_a_copy_of_other_tables_or_buckets_is_not(tmp_path: Path, options: dict[str, Any]) -> None:
    asked = replace(LakeOptions(tmp_path, ("public.t",)), **options)
    with pytest.raises(LakeError, match=r"a copy of public\.t in 16 buckets"):
        gone_on_with(tmp_path, 16, asked)
