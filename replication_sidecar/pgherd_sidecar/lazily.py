"""Modules that are imported when something of them is first used.

A command takes a moment, and the import of what other commands need (cryptography, psycopg, the
sidecar's configuration) takes several. A module that only bodies of functions use is named thus::

    if TYPE_CHECKING:
        from pgherd_sidecar.local import herd
    else:
        herd = lazily("pgherd_sidecar.local.herd")

Type checkers and import-linter see an ordinary import. The recipe is that of the page of
``importlib`` in Python's manual. An import that fails says so where the module is first used.
"""

import importlib.util
import sys
from types import ModuleType


def lazily(name: str) -> ModuleType:
    """Return a module that is executed when one of its attributes is first asked for.

    Raises:
        ModuleNotFoundError: there is none of this name.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name}", name=name)
    spec.loader = loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)  # as an import does
    return module
