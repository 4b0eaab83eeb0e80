"""What a trusted connection sends as it begins."""

import shlex

from pgherd_sidecar.pg import trusted


def test_a_value_with_a_blank_arrives_whole() -> None:
    sent = shlex.split(trusted.options({"application_name": r"a \ b"}))  # splits as the server does
    assert "application_name=a \\ b" in sent
    assert "default_transaction_isolation=read committed" in sent
    assert sent[::2] == ["-c"] * (len(sent) // 2)
