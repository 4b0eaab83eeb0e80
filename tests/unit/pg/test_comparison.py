"""What is asked of a server whose tables are compared."""

from pgherd_sidecar.pg.comparison.checksum import STATEMENTS


def test_a_column_may_be_called_as_a_result_is() -> None:
    """GROUP BY takes a name for that of a column first."""
    assert "GROUP BY 1" in STATEMENTS["buckets"].as_string(None)
