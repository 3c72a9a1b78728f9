from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.compiler import Compiler
from adjoint.errors import ExportError
from adjoint.exported.records import ProgramRecord
from adjoint.exporting.asking import asked_for
from adjoint.exporting.code import Code, machine
from adjoint.exporting.graphs import Exporting
from adjoint.exporting.recording import MAX_VERSIONS, Recording
from adjoint.target import cpu_target


def records(
    function: Callable[..., Any], args: tuple[Any, ...], dynamic: Any
) -> tuple[ProgramRecord, ...]:
    exporting = Exporting(Compiler(), cpu_target(machine("x86-64")), Code(["x86-64"]))
    return Recording(function, exporting, 0).versions(
        asked_for(function, args, {}, dynamic, None, 0)
    )


X = torch.rand(4, 3)


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if x.shape[0] > 1 else x.cos()


def test_there_is_one_version_where_no_branch_was_taken() -> None:
    assert len(records(lambda x, y: x + y, (X, X), True)) == 1
    assert len(records(by_size, (X,), False)) == 1


def test_sizes_that_take_another_branch_have_a_version() -> None:
    found = records(by_size, (X,), {"x": [0]})
    assert len(found) == 2
    assert found[0].conditions != found[1].conditions
    assert found[0].leaves[0].path == found[1].leaves[0].path == "x"


def test_there_are_not_too_many() -> None:
    def branching(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [by_size(x) for x in xs]

    args = tuple(torch.rand(4 + n, 3) for n in range(4))
    dynamic = {f"args[{n}]": [0] for n in range(4)}
    assert len(records(branching, args, dynamic)) == MAX_VERSIONS


def test_sizes_that_cannot_be_are_left_out() -> None:
    def strict(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] < 2:
            raise ValueError("at least two rows")
        return x.sin()

    (found,) = records(strict, (X,), {"x": [0]})
    assert found.conditions


def test_bounds_beyond_a_branch_have_a_version() -> None:
    def large(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] < 50 else x.cos()

    assert len(records(large, (X,), {"x": {0: (2, 100)}})) == 2


def test_bounds_that_cannot_be_are_refused() -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 50:
            raise ValueError("too large")
        return x.sin()

    with pytest.raises(ExportError, match=r"vary within \(2, 100\), and the program assumes"):
        records(small, (X,), {"x": {0: (2, 100)}})
