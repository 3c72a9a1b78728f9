"""adjoint: an ahead-of-time differentiating compiler for PyTorch.

The compiler, and torch with it, is imported when a name of it is first used: commands that need
neither start at once.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adjoint.backend import compile
    from adjoint.capture.direct import capture
    from adjoint.errors import (
        CaptureError,
        DifferentiationError,
        ExportError,
        FallbackWarning,
        LoadError,
        MismatchError,
        RewriteError,
    )
    from adjoint.explaining import Explanation, explain
    from adjoint.exported.loading import load
    from adjoint.exporting import export
    from adjoint.memory import MemoryReport, saved_values
    from adjoint.options import Options
    from adjoint.passes import Pass, graph_pass
    from adjoint.replacing import replaces
    from adjoint.rules.registry import vjp_rule
    from adjoint.runtime.reference import run
    from adjoint.transforms import (
        grad,
        hessian,
        hvp,
        jacfwd,
        jacrev,
        jvp,
        linearize,
        value_and_grad,
        vjp,
        vmap,
    )

__all__ = [
    "CaptureError",
    "DifferentiationError",
    "Explanation",
    "ExportError",
    "FallbackWarning",
    "LoadError",
    "MemoryReport",
    "MismatchError",
    "Options",
    "Pass",
    "RewriteError",
    "capture",
    "compile",
    "explain",
    "export",
    "grad",
    "graph_pass",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "load",
    "replaces",
    "run",
    "saved_values",
    "value_and_grad",
    "vjp",
    "vjp_rule",
    "vmap",
]

# Module: the names of `__all__` that it has.
_HOMES = {
    "adjoint.backend": ("compile",),
    "adjoint.capture.direct": ("capture",),
    "adjoint.errors": (
        "CaptureError",
        "DifferentiationError",
        "ExportError",
        "FallbackWarning",
        "LoadError",
        "MismatchError",
        "RewriteError",
    ),
    "adjoint.explaining": ("Explanation", "explain"),
    "adjoint.exported.loading": ("load",),
    "adjoint.exporting": ("export",),
    "adjoint.memory": ("MemoryReport", "saved_values"),
    "adjoint.options": ("Options",),
    "adjoint.passes": ("Pass", "graph_pass"),
    "adjoint.replacing": ("replaces",),
    "adjoint.rules.registry": ("vjp_rule",),
    "adjoint.runtime.reference": ("run",),
    "adjoint.transforms": (
        "grad",
        "hessian",
        "hvp",
        "jacfwd",
        "jacrev",
        "jvp",
        "linearize",
        "value_and_grad",
        "vjp",
        "vmap",
    ),
}


class _Package(ModuleType):
    """`adjoint.capture` is the function, although a package of that name is imported as well."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def _imported(module: str) -> ModuleType:
    """The module, imported without garbage collection, which would take a third of the time and
    find nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if was_enabled:
            gc.enable()


def __getattr__(name: str) -> object:
    """A name of the compiler, or a module of the package."""
    if name in __all__:
        # Alone, because an exported program is loaded where there is no LLVM.
        module = next(home for home, names in _HOMES.items() if name in names)
        home = _imported(module)
        globals().update({each: getattr(home, each) for each in _HOMES[module]})
        return globals()[name]
    if not name.startswith("__") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
