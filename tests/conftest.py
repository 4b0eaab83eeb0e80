"""What all tests share: what their failures mean.

mypy leaves this file out: it would be a second module of that name.
"""

from verdicts import pytest_configure, pytest_runtest_makereport

__all__ = ["pytest_configure", "pytest_runtest_makereport"]
