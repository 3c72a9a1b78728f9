"""What tests run on: the default target of a run (`pytest --target reference`), the processor
that code is generated for (`pytest --cpu x86-64-v2`), and whether what runs is compiled or was kept
(`pytest --kept FOLDER`).

A test that says nothing of a target is about what every target has to do.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from typing import Any, get_args, get_type_hints

import pytest

from adjoint.cache import Cache
from adjoint.compiler import Compiler
from adjoint.options import Options
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.levels import LEVELS
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.store.keeping import Store
from tests.shards import ONE_IN


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=get_args(get_type_hints(Options)["target"]),
        help="the target of compilations that ask for none",
    )
    parser.addoption(
        "--kept",
        metavar="FOLDER",
        help="keep everything that is compiled there, and run what is read back",
    )
    parser.addoption(
        "--cpu",
        choices=LEVELS,
        help="the level of x86-64 that code is generated for, if this machine has it",
    )


def _read_everything_back() -> None:
    """Every capture, derivative and program that can be kept is the one that was kept."""
    captured, derived, native = Cache.captured, Cache.derived, Compiler.native

    def captured_twice(self: Cache, ground_of: Any, make: Any) -> Any:
        made: list[Any] = []

        def once() -> Any:
            made[:] = made or [make()]
            return made[0]

        captured(self, ground_of, once)
        self.store.flush()
        return captured(self, ground_of, once)

    def derived_twice(self: Cache, graph_module: Any, asked: str, make: Any, check: Any) -> Any:
        made: list[Any] = []

        def once() -> Any:
            made[:] = made or [make()]
            return made[0]

        derived(self, graph_module, asked, once, check)
        self.store.flush()
        return derived(self, graph_module, asked, once, check)

    def native_twice(self: Compiler, *args: Any, **kwargs: Any) -> Any:
        native(self, *args, **kwargs)
        if self.store is not None:
            self.store.flush()
        return native(self, *args, **kwargs)

    def fail(self: Store, error: Exception) -> None:
        raise error

    Store.fail = fail  # type: ignore[method-assign]
    Cache.captured = captured_twice  # type: ignore[method-assign]
    Cache.derived = derived_twice  # type: ignore[method-assign, assignment]
    Compiler.native = native_twice  # type: ignore[method-assign]


def _check_every_other_run() -> None:
    """Every other run of a program checks what library calls return, not only the first."""
    call = CpuProgram.__call__

    def called(self: CpuProgram, inputs: list[Any]) -> Any:
        if self._checked_function is not None:
            for binding in list(self._bindings):
                binding.is_checked = not binding.is_checked
        return call(self, inputs)

    CpuProgram.__call__ = called  # type: ignore[method-assign]


def _set_defaults(**defaults: Any) -> None:
    """Defaults of options that a test does not set; every graph is verified after each pass."""
    names = [field.name for field in dataclasses.fields(Options)]
    known = dict(zip(names, Options.__init__.__defaults__ or (), strict=True))
    known.update({name: value for name, value in defaults.items() if value is not None})
    Options.__init__.__defaults__ = tuple(known.values())


def pytest_configure(config: pytest.Config) -> None:
    _check_every_other_run()
    # Tests are of compilations; those of the cache ask for one in a folder of their own.
    os.environ["ADJOINT_CACHE"] = "off"
    folder = config.getoption("--kept")
    _set_defaults(target=config.getoption("--target"), verify=True, cache=folder or False)
    if folder is not None:
        _read_everything_back()
    level = config.getoption("--cpu")
    if level is not None:
        try:
            reduced = machines.reduced(level)
        except ValueError as error:
            raise pytest.UsageError(f"--cpu {level}: {error}") from error
        machines.host = lambda: reduced  # type: ignore[assignment]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases of long tables slow, before `-m` selects."""
    seen: Counter[str] = Counter()
    for item in items:
        name = item.nodeid.partition("[")[0]
        if name in ONE_IN and not any(item.iter_markers("slow")):
            if seen[name] % ONE_IN[name]:
                item.add_marker(pytest.mark.slow)
            seen[name] += 1
