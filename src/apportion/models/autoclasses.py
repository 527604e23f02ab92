"""Magic, and why: cut models and Transformers find each other's classes by name.

After `import apportion`, in whatever order with Transformers, folders of cut models load by the
Auto classes. No public way does that:

- The Auto classes have no entry points. A type can be registered only once they are imported,
  which takes seconds that `import apportion` must not cost: a finder in `sys.meta_path` waits for
  them.
- They want a config class for each type. The cut ones derive from classes that Transformers itself
  imports when they are used, so each has a stand-in until something is asked of it.
- The classes themselves are made when their name is looked up, by the module's `__getattr__` of
  `cut_models`: pickles and self-contained folders, which carry that file, look up names and nothing
  else, and there is one for each class of Transformers.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from apportion.extras import require

_AUTO = "transformers.models.auto.configuration_auto"
_CUT_MODELS = "apportion.models.cut_models"


def class_of(name: str) -> Any:
    """A class of models by its name: one of Transformers, or a `Cut…` of it."""
    from apportion.models.shrinking import CUT_CLASS

    transformers = import_transformers()
    module = import_module(_CUT_MODELS) if name.startswith(CUT_CLASS) else transformers
    found = getattr(module, name, None)
    if not isinstance(found, type) or not issubclass(found, transformers.PreTrainedModel):
        raise ValueError(f"{name!r} is no class of models of Transformers")
    return found


def import_transformers() -> Any:
    """The library, or an error that says how to install it."""
    return require("transformers")


def register_when_imported() -> None:
    """Makes folders of cut models load by the Auto classes, now or when those are imported.

    Calling it again registers the rows that `ARCHITECTURES` was given since.
    """
    if _AUTO in sys.modules:
        _register(sys.modules[_AUTO])
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


class _Watcher(importlib.abc.MetaPathFinder):
    """Registers cut models once Transformers' Auto classes are imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _AUTO:
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


def _register(auto: ModuleType) -> None:
    """Tells the Auto classes the types of cut models; a config then tells them of its models."""
    # Here and not above, because they import torch, as Transformers has by now.
    from apportion.models.shrinking import CUT_CLASS, CUT_TYPE
    from apportion.models.sites import ARCHITECTURES

    for kind in ARCHITECTURES:
        if kind in auto.CONFIG_MAPPING_NAMES:
            later = _Later(CUT_CLASS + auto.CONFIG_MAPPING_NAMES[kind])
            auto.CONFIG_MAPPING.register(CUT_TYPE + kind, later, exist_ok=True)


class _Later:
    """In place of a config class of a cut model, which is made when something is asked of it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(import_module(_CUT_MODELS), self._name), name)
