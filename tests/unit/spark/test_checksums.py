"""Arithmetic of checksums, and how tables are divided."""

import pytest
from pgherd_spark.reading.catalog import Table
from pgherd_spark.reading.checksums import NOTHING, Sum, _value, parts_of
from pgherd_spark.reading.cluster import _last_words
from pgherd_spark.reading.rowhash import record, row_hash
from pgherd_spark.reading.sources import Relation, Source

SOURCE = Source("n1", "", 1, "", "")
TABLE = Table("public.t", ("id",), ("integer",), ("id",), ("id",))


@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 100])
@pytest.mark.parametrize("part_bytes", [1, 8192, 3 * 8192, 1 << 30])
def test_the_parts_of_a_table_cover_every_block_once_also_those_that_it_grows_by(
    blocks: int, part_bytes: int
) -> None:
    relation = Relation("public.t", "public", "t", 1, 1, blocks, 8192)
    parts = list(parts_of(SOURCE, TABLE, relation, part_bytes))
    assert parts[0].first == 0
    assert [part.end for part in parts[:-1]] == [part.first for part in parts[1:]]
    assert parts[-1].end is None


def test_equal_rows_do_not_cancel_each_other_and_order_does_not_matter() -> None:
    row, other = Sum(1, 5, (1 << 64) - 3), Sum(1, 9, 11)
    assert row + row != NOTHING
    assert row + other == other + row == Sum(2, 14, 8)
    assert len(row.hex()) == len(NOTHING.hex()) == 32


@pytest.mark.parametrize("types", [["integer"], ["date"], ["uuid", "text", "bytea"], []])
def test_the_hash_of_a_row_makes_no_record_where_no_value_needs_its_text(types: list[str]) -> None:
    columns = [(f"c{number}", kind) for number, kind in enumerate(types)]
    assert "ROW(" not in row_hash(columns).as_string(None)
    assert 'ROW("j")' in row_hash([*columns, ("j", "jsonb")]).as_string(None)


def test_no_column_can_be_taken_for_a_function_of_its_row() -> None:
    columns = [("to_json", kind) for kind in ("text", "bigint", "uuid", "date", "jsonb")]
    assert "." not in record(["to_json"]).as_string(None)
    assert '."to_json"' not in row_hash(columns).as_string(None)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("()", None),
        ('("")', ""),
        ("(abc)", "abc"),
        ('("a ""quoted"" \\\\ b")', 'a "quoted" \\ b'),
        ('("(1,2)")', "(1,2)"),
    ],
)
def test_a_value_is_read_out_of_a_record_of_one_column(literal: str, value: str | None) -> None:
    assert _value(literal) == value


def test_of_a_failed_task_the_user_is_told_what_was_raised() -> None:
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 1, in main
    process()
psycopg.errors.AmbiguousFunction: operator is not unique
LINE 1: SELECT
"""
    assert _last_words(text) == "psycopg.errors.AmbiguousFunction: operator is not unique"
    chained = (
        f"{text}\n\nDuring handling of the above, another:\n\na.b.StoreError: s3://b is gone\n"
    )
    assert _last_words(chained) == "a.b.StoreError: s3://b is gone"
    assert _last_words("Job 0 cancelled") == "Job 0 cancelled"


def test_where_python_raised_nothing_the_user_is_told_what_java_did() -> None:
    text = """An error occurred while calling z:org.apache.spark.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 3 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""
    aborted = (
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 3 times"
    )
    assert _last_words(text) == aborted
    caused = f"{text}Caused by: java.io.IOException: No space left on device\n\t... 1 more\n"
    cause = "java.io.IOException: No space left on device"
    assert _last_words(caused) == f"{aborted}; caused by {cause}"
