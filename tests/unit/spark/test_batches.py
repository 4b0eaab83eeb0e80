"""Which part of the log a batch takes, by a data source without its Spark."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

_SPARK = {
    "pyspark": [],
    "pyspark.sql": [],
    "pyspark.sql.datasource": [
        "DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition",
    ],
    "pyspark.sql.streaming": [],
    "pyspark.sql.streaming.datasource": ["SupportsTriggerAvailableNow"],
}  # fmt: skip
_MODULE = "pgherd_spark.stream.datasource"


class Log:
    """A log of which the members have trimmed the beginning."""

    async def begins(self) -> int:
        return 41

    async def visible(self) -> int:
        return 99


@pytest.fixture
def datasource(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with as much of PySpark as it derives from."""
    for name, classes in _SPARK.items():
        module = ModuleType(name)
        for one in classes:
            setattr(module, one, type(one, (), {"__init__": lambda *_: None}))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, _MODULE, raising=False)
    found = importlib.import_module(_MODULE)
    monkeypatch.setattr(found.SourceOptions, "log", lambda _: Log())
    yield found
    del sys.modules[_MODULE]


@pytest.mark.parametrize(
    ("given", "taken"),
    [({}, (40, 99)), ({"after": "0"}, (0, 99)), ({"after": "50", "through": "60"}, (50, 60))],
)
def test_a_batch_begins_with_what_the_log_still_holds_unless_it_is_told_where(
    datasource: Any, given: dict[str, str], taken: tuple[int, int]
) -> None:
    reader = datasource.ChangesReader(datasource.SourceOptions.of({"admin": "n1", **given}))
    assert [(one.after, one.through) for one in reader.partitions()] == [taken]
