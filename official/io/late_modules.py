"""Modules whose code runs when something of them is first asked for, not when they are imported.

TensorFlow imports packages in case that somebody uses them: pandas, whose import takes a third of a second,
for tables that are given to Keras. They stay usable as they are; only who uses them waits for them.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import threading
import types
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # importlib.abc takes half as long to load as Python to start, and is of no use here


class _LateModule(types.ModuleType):
    """A module whose code has not run."""

    def __getattr__(self, name: str) -> Any:
        """Runs the module's code for the first name that the module does not have without."""
        loader = self.__dict__.get("_late_loader")
        if loader is not None:  # else another thread has just run it
            with loader.lock:
                if loader.is_running:  # the module's own code asks for what it has not defined yet
                    raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
                if type(self) is _LateModule:
                    loader.run(self)
        return getattr(sys.modules.get(self.__name__, self), name)


class _LateLoader(Loader):
    """Loads a module, but for its code."""

    def __init__(self, loader: Loader):
        self._loader = loader
        self._package_path: list[str] | None = None
        self.lock, self.is_running = threading.RLock(), False

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        own = module.__dict__
        own["__loader__"] = module.__spec__.loader = self._loader  # type: ignore[union-attr]
        own["_late_loader"] = self
        # Asking for it, as the import of a part of a package does, runs the package's code.
        self._package_path = own.pop("__path__", None)
        module.__class__ = _LateModule

    def run(self, module: types.ModuleType) -> None:
        """Runs the code of a module. Where it fails, the module stays as it was."""
        own, before = module.__dict__, dict(module.__dict__)
        if self._package_path is not None:
            own["__path__"] = self._package_path
        self.is_running = True
        try:
            self._loader.exec_module(module)
        except BaseException:
            own.clear()
            own.update(before)
            raise
        finally:
            self.is_running = False
        module.__class__ = types.ModuleType
        own.pop("_late_loader", None)


class _Finder:
    """Finds modules as they are found without it, those of some names as late ones."""

    def __init__(self, names: Collection[str]):
        self._names = frozenset(names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None  # it is not there, or is no plain Python: whoever else finds it
        spec.loader = _LateLoader(spec.loader)
        return spec


class _ThereAlready(Loader):
    """Gives a module that is loaded already."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = sys.modules[spec.name]
        self._spec = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self._spec


class _Parts:
    """Finds parts of packages that are loaded already. The import of a part asks its late package for its
    path, and so runs its code, which may have imported that part: it is not loaded a second time."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if target is not None or fullname not in sys.modules:
            return None
        return importlib.machinery.ModuleSpec(fullname, _ThereAlready())


_PARTS = _Parts()


@contextlib.contextmanager
def late(names: Collection[str]) -> Iterator[None]:
    """Makes modules late whose first import is in its block."""
    finder = _Finder(names)
    if _PARTS not in sys.meta_path:
        sys.meta_path.insert(0, _PARTS)  # for good: the modules may run at any time
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
