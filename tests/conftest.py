"""The targets that tests run on: `pytest --target reference` is the default target for a run.

A test that says nothing of a target is about what every target has to do.
"""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from adjoint.options import Options


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--target",
        choices=get_args(get_type_hints(Options)["target"]),
        help="the target of compilations that ask for none",
    )


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--target")
    if target is not None:
        _, *others = Options.__init__.__defaults__ or ()
        Options.__init__.__defaults__ = (target, *others)
