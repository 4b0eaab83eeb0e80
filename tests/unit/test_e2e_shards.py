"""Each end-to-end test belongs to one shard, and none has much more than another."""

import pytest
from e2e.shards import files_of

_TESTS = {"events": 9, "herd": 8, "troubles": 7, "beginnings": 5, "jobs": 4, "growing": 1}


def test_every_file_is_in_one_shard() -> None:
    shards = [files_of(f"{number}/4", _TESTS) for number in range(1, 5)]
    assert sorted(file for files in shards for file in files) == sorted(_TESTS)
    assert [sum(_TESTS[file] for file in files) for files in shards] == [9, 8, 8, 9]


@pytest.mark.parametrize("shard", ["", "1", "0/4", "5/4", "a/b", "1/4/2"])
def test_what_is_no_shard_is_refused(shard: str) -> None:
    with pytest.raises(ValueError, match="is no shard: give one as 1/4"):
        files_of(shard, _TESTS)
