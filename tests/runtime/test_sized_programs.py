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
from adjoint import compiler
from adjoint.errors import FallbackWarning
from adjoint.graph.sizes import NotResizable
from adjoint.loops.plan import Plan
from adjoint.lower.planning import lower
from adjoint.runtime import sized_programs, specializations
from adjoint.runtime.plans import binding
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.sized_programs import SizedPrograms
from adjoint.runtime.specializations import MAX_SIZE_VERSIONS
from tests.lowering import native_program


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

    with mock.patch.object(compiler, "lower", curious):
        yield made


def op_by_op_is_an_error() -> Any:
    error = AssertionError("op by op")
    return mock.patch.object(sized_programs, "evaluate_taking", side_effect=error)


def double_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def assert_right(run: SizedPrograms, sizes: Sequence[int]) -> None:
    for size in sizes:
        x = torch.rand(size)
        torch.testing.assert_close(list(run([x])), [double_sine(x)])


def test_one_program_for_all_sizes() -> None:
    made: list[fx.GraphModule] = []

    def noted(graph_module: fx.GraphModule) -> PlanProgram | None:
        made.append(graph_module)
        return native_program(graph_module)

    run = SizedPrograms(graph(double_sine, torch.rand(6)), noted)
    with op_by_op_is_an_error():
        assert_right(run, [6, 1, 0, 2, 300])
    assert len(made) == 1


def test_sizes_that_a_program_is_not_for_have_their_own() -> None:
    with plans() as made:
        run = SizedPrograms(graph(double_sine, torch.rand(6)), native_program)
        with op_by_op_is_an_error():
            assert_right(run, [6, 5, 7, 1, 2, 9, 8, 3, 6])
    assert made == [6, 1, 9]


def test_too_many_kinds_of_sizes_run_op_by_op_and_say_so() -> None:
    with plans(divisor=1) as made:
        run = SizedPrograms(graph(double_sine, torch.rand(6)), native_program)
        assert_right(run, range(7, 6 + MAX_SIZE_VERSIONS))
        with pytest.warns(FallbackWarning, match=r"=100: native code was made 8 times"):
            assert_right(run, [100])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_right(run, [100, 6, 7])
    assert len(made) == MAX_SIZE_VERSIONS


def test_a_graph_that_cannot_be_resized_runs_op_by_op_and_says_so() -> None:
    with plans():
        run = SizedPrograms(graph(double_sine, torch.rand(6)), native_program)
        stiff = mock.patch.object(
            specializations, "resized", side_effect=NotResizable("it is stiff")
        )
        with stiff, pytest.warns(FallbackWarning, match="assumes Eq.*and it is stiff"):
            assert_right(run, [9])


def test_what_is_remembered_is_bounded() -> None:
    with plans(), mock.patch.object(sized_programs, "MAX_REFUSED_SIZES", 3):
        run = SizedPrograms(graph(double_sine, torch.rand(6)), native_program)
        assert_right(run, [4, 5, 6, 7, 4, 5, 6, 7])
        assert len(run._refused) == 0
        stiff = mock.patch.object(
            specializations, "resized", side_effect=NotResizable("it is stiff")
        )
        with stiff, warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            assert_right(run, [20, 21, 22, 23, 24, 20])
        assert len(run._refused) == 3


def test_a_mode_that_watches_sees_each_op() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[Any] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    run = SizedPrograms(graph(double_sine, torch.rand(6)), native_program)
    with Watching():  # type: ignore[no-untyped-call]
        run([torch.rand(6)])
    assert torch.ops.aten.sin.default in seen


def test_nothing_native_is_run_op_by_op_silently() -> None:
    x = torch.rand(3, 4)
    inputs = [x]
    (result,) = SizedPrograms(graph(lambda x: x.sort(1).values, x), native_program)(inputs)
    torch.testing.assert_close(result, x.sort(1).values)
    assert inputs == []


def test_sizes_that_cannot_be_bound_run_op_by_op_and_others_do_not() -> None:
    run = SizedPrograms(graph(double_sine, torch.rand(6)), native_program)
    bind = binding.Binding.bind

    def stiff(self: binding.Binding, sizes: tuple[int, ...]) -> None:
        if 9 in sizes:
            raise ArithmeticError("nine")
        bind(self, sizes)

    with mock.patch.object(binding.Binding, "bind", stiff):
        with pytest.warns(FallbackWarning, match=r"runs op by op for sizes \w+=9: .*nine"):
            assert_right(run, [9])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_right(run, [9])
            with op_by_op_is_an_error():
                assert_right(run, [6, 8, 300])
                with pytest.raises(AssertionError, match="op by op"):
                    run([torch.rand(9)])
