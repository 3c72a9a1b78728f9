from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from adjoint.rewrite.patterns import Call
from adjoint.rewrite.recording import Untraceable
from adjoint.rewrite.tracing import pattern_of
from tests.rewriting import matched

aten = torch.ops.aten
MATRIX = torch.ones(2, 3)


def test_a_function_is_the_pattern_of_its_operators() -> None:
    (found,) = pattern_of(lambda x, y: torch.relu(x + y), [MATRIX, MATRIX])
    (root,) = found.outputs
    assert isinstance(root, Call)
    assert root.ops == (aten.relu.default,)
    inner = root.args[0]
    assert isinstance(inner, Call)
    assert inner.ops == (aten.add.Tensor,)
    assert found.parameters == ("x", "y")


def test_a_pattern_has_no_sizes_of_its_examples() -> None:
    def flat(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0] * x.shape[1]).sin()

    for dynamic in (False, True):
        assert matched(flat, [MATRIX], flat, torch.ones(5, 7), dynamic=dynamic) == 1
    assert matched(flat, [MATRIX], lambda x: x.reshape(7, 5).sin(), torch.ones(5, 7)) == 0


def test_sizes_must_be_what_the_function_computes() -> None:
    def rows(x: Tensor) -> Tensor:
        return x.view(x.shape[1], x.shape[0]).sin()

    assert matched(rows, [MATRIX], rows, torch.ones(5, 7)) == 1
    assert matched(rows, [MATRIX], lambda x: x.view(5, 7).sin(), torch.ones(5, 7)) == 0


def test_numbers_among_the_examples_stand_for_any() -> None:
    def scaled(x: Tensor, factor: float) -> Tensor:
        return torch.relu(x * factor) + 2

    assert matched(scaled, [MATRIX, 0.5], lambda x: torch.relu(x * 7.0) + 2, MATRIX) == 1
    assert matched(scaled, [MATRIX, 0.5], lambda x: torch.relu(x * 7.0) + 3, MATRIX) == 0
    # The same number by chance: it is the first factor that is a parameter.
    assert matched(scaled, [MATRIX, 2.0], lambda x: torch.relu(x * 7.0) + 2, MATRIX) == 1


def test_products_of_tensors_that_require_grad_are_matched_as_well() -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x @ w)

    examples = [torch.ones(4, 2, 3), torch.ones(3, 5)]
    for needed in (False, True):
        inputs = [each.clone().requires_grad_(needed) for each in examples]
        assert matched(product, examples, product, *inputs) == 1


def test_several_results() -> None:
    (found,) = pattern_of(lambda x: (x.sin(), x.cos()), [MATRIX])
    ops = [each.ops[0] for each in found.outputs if isinstance(each, Call)]
    assert ops == [aten.sin.default, aten.cos.default]
    assert matched(lambda x: x.max(0).values, [MATRIX], lambda x: x.max(0).values, MATRIX) == 1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x, "returns something that none of its operators computed"),
        (lambda x: x.add_(1), "calls aten.add_.Tensor, which writes to its argument"),
        (
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
            "it calls the higher-order operator cond",
        ),
        (lambda x, y: x, "takes 2 arguments and has 1 examples"),
        (lambda *x: x[0].sin(), "any number of arguments"),
    ],
)
def test_what_is_no_pattern(function: Any, why: str) -> None:
    with pytest.raises(Untraceable, match=why):
        pattern_of(function, [MATRIX])
    with pytest.raises(Untraceable, match="its example for x is a list; give each tensor"):
        pattern_of(lambda x: torch.cat(x), [[MATRIX]])


def test_numbers_that_are_computed_are_refused() -> None:
    with pytest.raises(Untraceable, match="a number computed from n"):
        pattern_of(lambda x, n: x * (n + 1.0), [MATRIX, 2.0])
    with pytest.raises(Untraceable, match="other operators for another value of n"):
        pattern_of(lambda x, n: x.sin() if n < 3 else x.cos(), [MATRIX, 2.0])


MATRICES = [torch.ones(2, 3, 4, 5)] * 3
IMAGES = torch.ones(2, 3, 8, 8)
CHANNELS = torch.ones(3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize(
    ("pattern", "examples"),
    [
        (lambda x, w: F.batch_norm(x, None, None, w, None, True), [IMAGES, CHANNELS]),
        (
            lambda x, mean, var: F.relu(F.batch_norm(x, mean, var)),
            [IMAGES, *[torch.ones(3)] * 2],
        ),
        (lambda x: F.instance_norm(x), [IMAGES]),
        (lambda x: F.dropout(x, 0.5, training=False).sin(), [MATRIX]),
        (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), [MATRIX, CHANNELS]),
        # The scale is computed from a size, in C++ or in Python.
        (
            lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
            [*MATRICES, torch.ones(4, 4)],
        ),
        (lambda x: torch.relu(x.max(0).values + x.max(0).indices), [MATRIX]),
    ],
)
def test_functions_that_torch_computes_in_several_ways(
    pattern: Any, examples: list[Any], needed: bool, dynamic: bool
) -> None:
    """By other operators where sizes are symbols, or where tensors require grad."""
    names = inspect.signature(pattern).parameters
    inputs = [
        each.clone().requires_grad_(needed and name not in ("mean", "var"))
        for name, each in zip(names, examples, strict=True)
    ]

    def program(*given: Any) -> Any:
        # A result that is a view is made by the caller.
        return pattern(*given) * 2

    assert matched(pattern, examples, program, *inputs, dynamic=dynamic) == 1


def test_results_that_nothing_uses() -> None:
    def both(x: Tensor) -> Any:
        return tuple(x.max(0))

    assert matched(both, [MATRIX], lambda x: x.max(0).values * 2, MATRIX) == 1
    assert (
        matched(both, [MATRIX], lambda x: x.max(0).values * x.max(1).indices, torch.ones(3, 3)) == 1
    )


def test_sizes_that_depend_on_data_are_refused() -> None:
    with pytest.raises(Untraceable, match=r"the size u\d+ in it depends on data"):
        pattern_of(lambda x: torch.full_like(x, x.nonzero().shape[0]), [MATRIX])
