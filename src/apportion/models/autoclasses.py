"""Cut models and the Auto classes of Transformers: told of each other without a slow import.

After `import apportion`, in whatever order with Transformers, folders of cut models load by the
Auto classes. Neither torch nor Transformers is imported for that.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

AUTO = "transformers.models.auto.configuration_auto"


class _Watcher(importlib.abc.MetaPathFinder):
    """Registers cut models once Transformers' Auto classes are imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != AUTO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def then_register(module: ModuleType) -> None:
            execute(module)
            _register(module)

        spec.loader.exec_module = then_register  # type: ignore[method-assign]
        return spec


def register_when_imported() -> None:
    """Makes folders of cut models load by the Auto classes, now or when those are imported."""
    if AUTO in sys.modules:
        _register(sys.modules[AUTO])
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _register(auto: ModuleType) -> None:
    # By its name, for it lies above this room and imports torch, as Transformers has by now.
    resolve_name("apportion.models.reloading:register")(auto)
