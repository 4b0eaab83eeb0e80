"""Modules that are imported when something of them is first used.

A command takes a moment, and the import of what other commands need (cryptography, psycopg, the
sidecar's configuration) takes several. A module that only bodies of functions use comes thus::

    with lazily():
        from pgherd_sidecar.local import herd

Type checkers and import-linter see an ordinary import. An import that fails says so where the
module is first used. ``from pgherd_sidecar.local.herd import Herd`` would use it at once.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        is_package = spec is not None and spec.submodule_search_locations is not None
        if spec is not None and spec.loader is not None and not is_package:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def lazily() -> Iterator[None]:
    """Have a module that the block imports executed when something of it is first asked for."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
