"""All tests share this: which of them run, and what their failures mean.

mypy leaves this file out: it would be a second module of that name.
"""

from families import pytest_collection_modifyitems
from verdicts import pytest_configure, pytest_runtest_makereport

__all__ = ["pytest_collection_modifyitems", "pytest_configure", "pytest_runtest_makereport"]
