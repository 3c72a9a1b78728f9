from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx

import adjoint
from adjoint import native, programs
from adjoint.errors import FallbackWarning
from adjoint.graph.sizes import NotResizable
from adjoint.loops.plan import Plan
from adjoint.lower.planning import lower
from adjoint.programs import Programs


def graph(function: Callable[..., Any], *examples: torch.Tensor) -> fx.GraphModule:
    return adjoint.capture(function, *examples, dynamic=True).graph_module


@contextmanager
def plans(divisor: int = 4) -> Iterator[list[int]]:
    """Lowering assumes what the first size is divided by `divisor`; for which sizes it was done."""
    made: list[int] = []

    def curious(graph_module: fx.GraphModule, *options: Any) -> Plan:
        (first, *_) = graph_module.graph.find_nodes(op="placeholder")
        made.append(first.meta["val"].shape[0].node.hint)
        int(first.meta["val"].shape[0] // divisor)
        return lower(graph_module, *options)

    with mock.patch.object(native, "lower", curious):
        yield made


def double_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def assert_right(run: Programs, sizes: Sequence[int]) -> None:
    for size in sizes:
        x = torch.rand(size)
        torch.testing.assert_close(list(run([x])), [double_sine(x)])


def test_one_program_for_all_sizes() -> None:
    run = Programs(graph(double_sine, torch.rand(6)))
    with (
        mock.patch.object(programs, "native_program", side_effect=AssertionError("made anew")),
        mock.patch.object(programs, "evaluate", side_effect=AssertionError("op by op")),
    ):
        assert_right(run, [6, 1, 0, 2, 300])


def test_sizes_that_a_program_is_not_for_have_their_own() -> None:
    with plans() as made:
        run = Programs(graph(double_sine, torch.rand(6)))
        with mock.patch.object(programs, "evaluate", side_effect=AssertionError("op by op")):
            assert_right(run, [6, 5, 7, 1, 2, 9, 8, 3, 6])
    assert made == [6, 1, 9]


def test_too_many_kinds_of_sizes_run_op_by_op_and_say_so() -> None:
    with plans(divisor=1) as made:
        run = Programs(graph(double_sine, torch.rand(6)))
        assert_right(run, range(7, 6 + programs.KINDS))
        with pytest.warns(FallbackWarning, match=r"=100: native code was made 8 times"):
            assert_right(run, [100])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_right(run, [100, 6, 7])
    assert len(made) == programs.KINDS


def test_a_graph_that_cannot_be_resized_runs_op_by_op_and_says_so() -> None:
    with plans():
        run = Programs(graph(double_sine, torch.rand(6)))
        stiff = mock.patch.object(programs, "resized", side_effect=NotResizable("it is stiff"))
        with stiff, pytest.warns(FallbackWarning, match="assumes Eq.*and it is stiff"):
            assert_right(run, [9])


def test_what_is_remembered_is_bounded() -> None:
    with plans(), mock.patch.object(programs, "REMEMBERED", 3):
        run = Programs(graph(double_sine, torch.rand(6)))
        assert_right(run, [4, 5, 6, 7, 4, 5, 6, 7])
        assert len(run._chosen) <= 3


def test_a_mode_that_watches_sees_each_op() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    run = Programs(graph(double_sine, torch.rand(6)))
    with Watching():  # type: ignore[no-untyped-call]
        run([torch.rand(6)])
    assert torch.ops.aten.sin.default in seen


def test_nothing_native_is_run_op_by_op_silently() -> None:
    x = torch.rand(3, 4)
    inputs = [x]
    (result,) = Programs(graph(lambda x: x.sort(1).values, x))(inputs)
    torch.testing.assert_close(result, x.sort(1).values)
    assert inputs == []
