"""What tests run on: the default target of a run (`pytest --target reference`), and the processor
that code is generated for (`pytest --cpu x86-64-v2`).

A test that says nothing of a target is about what every target has to do.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from adjoint.options import Options
from adjoint.runtime.cpu import machines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=get_args(get_type_hints(Options)["target"]),
        help="the target of compilations that ask for none",
    )
    parser.addoption(
        "--cpu",
        choices=machines.LEVELS,
        help="the level of x86-64 that code is generated for, if this machine has it",
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--target")
    if target is not None:
        _, *others = Options.__init__.__defaults__ or ()
        Options.__init__.__defaults__ = (target, *others)
    level = config.getoption("--cpu")
    if level is not None:
        try:
            reduced = machines.reduced(level)
        except ValueError as error:
            raise pytest.UsageError(f"--cpu {level}: {error}") from error
        machines.host = lambda: reduced  # type: ignore[assignment]
