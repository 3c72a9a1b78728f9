from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.loops.runs import runs_of
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.program import CpuHost, CpuWriter
from adjoint.runtime.plans.writing import fit
from tests.lowering import graph_of, lower


def test_fit_lays_out_anew() -> None:
    x = torch.rand(3, 4)
    made = fit(x, (3, 4), (1, 3))
    assert made.stride() == (1, 3)
    assert torch.equal(made, x)


@pytest.mark.parametrize(
    ("given", "strides", "is_copied"),
    [
        (torch.rand(3, 1, 4).transpose(0, 1).contiguous().transpose(0, 1), (4, 4, 1), False),
        (torch.rand(3, 1, 4), (4, 77, 1), False),
        (torch.rand(1, 1, 1).expand(3, 1, 4), (4, 4, 1), True),
        (torch.rand(3, 1, 4), (1, 12, 3), True),
        (torch.complex(torch.rand(3, 1, 4), torch.rand(3, 1, 4)).conj().imag, (4, 4, 1), True),
        (torch._efficientzerotensor((3, 1, 4)), (4, 4, 1), True),
    ],
)
def test_what_lies_as_expected_is_not_copied(
    given: torch.Tensor, strides: tuple[int, ...], is_copied: bool
) -> None:
    made = fit(given, (3, 1, 4), strides)
    assert torch.equal(made, given)
    assert made.data_ptr()
    assert not made.is_neg()
    assert (made.data_ptr() != given.data_ptr()) == is_copied
    axes = zip(made.shape, made.stride(), strides, strict=True)
    assert all(size == 1 or one == other for size, one, other in axes)


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (1, 1), (0, 0), (2, 2)])
def test_a_negated_tensor_that_overlaps_itself_is_copied_as_it_lies(
    strides: tuple[int, int],
) -> None:
    given = torch._neg_view(torch.rand(30).as_strided((3, 4), strides))
    made = fit(given, (3, 4), strides)
    assert torch.equal(made, given)
    assert made.stride() == strides
    assert not made.is_neg()


def test_equal_elements_are_laid_out_as_those_of_an_expanded_tensor() -> None:
    given = torch.rand(1, 4, 1).expand(3, 4, 5).contiguous()
    made = fit(given, (3, 4, 5), (0, 1, 0))
    assert torch.equal(made, given)
    assert made.stride() == (0, 1, 0)
    with pytest.raises(RuntimeError, match=r"a tensor with strides \(0, 1, 0\) was"):
        fit(torch.rand(3, 4, 5), (3, 4, 5), (0, 1, 0))


def text_of(function: Callable[..., Any], *inputs: torch.Tensor) -> str:
    plan = lower(graph_of(function, inputs))
    functions = {launch: NativeFunction(0, None) for launch in plan.launches}
    host = CpuHost(plan, runs_of(plan), functions, 1)
    return CpuWriter(host, runs_of(plan)).text()[0]


def test_a_run_of_kernels_is_one_native_call() -> None:
    x = torch.rand(300, 40)
    text = text_of(lambda x: [x.sum(0), x.sin().sum()], x)
    assert text.count("runs[") == 1
    text = text_of(lambda x: [(x.sin().sort(1).values * 2).cos()], x)
    first, _, second = text.partition("sort")
    assert "runs[0](" in first
    assert "runs[1](" in second


def test_a_value_is_released_after_its_last_use() -> None:
    x = torch.rand(3, 4)
    lines = text_of(lambda x: [x.sort(1).values.sort(0).values], x).splitlines()
    released = next(n for n, line in enumerate(lines) if line.strip() == "s0 = None")
    assert released < next(n for n, line in enumerate(lines) if "return" in line)
