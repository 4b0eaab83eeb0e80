"""Jobs on Spark are announced when there is a Spark."""

import pytest
from pgherd_sidecar.cli import jobs
from pgherd_sidecar.cli.errors import HerdError
from pgherd_spark import cluster


def test_without_spark_there_is_only_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "is_installed", lambda: False)
    missing = pytest.raises(HerdError, match="scripts/setup spark")
    with missing, jobs._errors(), jobs._spark("pgherd check", 1):
        pass
    assert not capsys.readouterr().err
