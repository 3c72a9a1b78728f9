from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.differentiate.sweep import Sweep, differentiate
from adjoint.errors import DifferentiationError
from adjoint.graph.descriptors import Gradient, Result, Tangent
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import (
    descriptor_of,
    input_descriptors,
    inputs_of,
    operand_of,
    output_descriptors,
    outputs_of,
    source_of,
    value_of,
)
from adjoint.graph.purity import remove_dead_code
from adjoint.rules.registry import VJPS
from tests.differentiation import check, joint_of, reverse_nodes, targets
from tests.parity import leaf, plain

aten = torch.ops.aten


@pytest.fixture
def rule() -> Iterator[Callable[[Any, Any], None]]:
    """Replaces rules for one test."""
    before = dict(VJPS)

    def replace(op: Any, function: Any) -> None:
        adjoint.vjp_rule(op)(function)

    yield replace
    VJPS.clear()
    VJPS.update(before)


def test_inputs_then_tangents_to_outputs_then_gradients() -> None:
    x, y, cotangent = leaf(3), leaf(3), plain(3)
    joint = joint_of(lambda x, y: (x.sin() * y, y), x, y, wrt=(0, 1))
    *_, tangent = input_descriptors(joint.graph)
    *_, first, second = output_descriptors(joint.graph)
    assert isinstance(tangent, Tangent)
    assert isinstance(first, Gradient)
    assert isinstance(second, Gradient)
    value, *_, dx, dy = evaluate(joint, [x.detach(), y.detach(), cotangent])
    torch.testing.assert_close(value, x.detach().sin() * y.detach())
    torch.testing.assert_close(dx, cotangent * x.detach().cos() * y.detach())
    torch.testing.assert_close(dy, cotangent * x.detach().sin())


def test_tangents_are_those_of_results_though_new_values_of_inputs_come_first() -> None:
    def function(x: Tensor, buffer: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        buffer.add_(1)
        result = x.sin()
        other.mul_(2)
        return result, x.cos()

    x, first, second = leaf(3), plain(3), plain(3)
    captured = adjoint.capture(function, x, plain(3), plain(3)).graph_module
    described = output_descriptors(captured.graph)
    results = [place for place, each in enumerate(described) if isinstance(each, Result)]
    assert results == [2, 3]
    joint = differentiate(captured, results, [0]).graph_module
    tangents = [each for each in input_descriptors(joint.graph) if isinstance(each, Tangent)]
    assert [each.of for each in tangents] == [described[place] for place in results]
    *_, gradient = evaluate(joint, [x.detach(), plain(3), plain(3), first, second])
    torch.testing.assert_close(gradient, first * x.detach().cos() - second * x.detach().sin())


@pytest.mark.parametrize(
    ("function", "strides"),
    [
        # Of a part of a tensor, without the gaps between its rows; else as the output has them.
        (lambda x: (x * 2)[:, :2], (2, 1)),
        (lambda x: (x * 2)[:, :2].t(), (1, 2)),
        (lambda x: (x * 2).t(), (1, 4)),
        (lambda x: (x * 2)[:1].expand(3, 4), (0, 1)),
    ],
)
def test_a_tangent_has_no_gaps(
    function: Callable[[Tensor], Tensor], strides: tuple[int, ...]
) -> None:
    """A forward graph returns parts of tensors if it saves them."""
    graph_module = adjoint.capture(lambda x: function(x).exp(), leaf(3, 4)).graph_module
    (result,) = outputs_of(graph_module.graph)
    result.replace_all_uses_with(operand_of(result))
    joint = differentiate(graph_module, [0], [0]).graph_module
    _, tangent = inputs_of(joint.graph)
    assert isinstance(descriptor_of(tangent), Tangent)
    assert value_of(tangent).stride() == strides


def test_every_reverse_node_names_its_forward_node() -> None:
    joint = joint_of(lambda x: (x.sin() * 2).exp(), leaf(3))
    names = {node.name for node in joint.graph.nodes}
    for node in reverse_nodes(joint):
        grad_of = node.meta["grad_of"]
        assert grad_of.node in names
        assert grad_of.order == 1
        line = source_of(node)
        assert line is not None
        assert line.file.endswith("test_sweep.py")


# Zeros --------------------------------------------------------------------------------------------


def test_a_zero_cotangent_has_no_region() -> None:
    joint = joint_of(lambda x, y: (x.sin(), y.exp()), leaf(3), leaf(3), of=(0,), wrt=(0, 1))
    assert {node.meta["grad_of"].op for node in reverse_nodes(joint)} == {"aten.sin.default"}
    assert outputs_of(joint.graph)[-1] is None


def test_no_zeros_are_made_for_results_that_are_not_used() -> None:
    def function(x: Tensor) -> Tensor:
        _, mean = torch.var_mean(x.sin())
        return mean

    joint = joint_of(function, leaf(4))
    assert not {aten.zeros_like.default, aten.zeros.default, aten.sub.Tensor} & {*targets(joint)}
    check(function, [leaf(4)], 2)


def test_a_step_ends_the_flow() -> None:
    joint = joint_of(lambda x: x.sin().floor() * 2, leaf(3))
    assert aten.cos.default not in targets(joint)


# Shapes and dtypes --------------------------------------------------------------------------------


def test_sizes_are_symbols_and_no_tensors() -> None:
    joint = joint_of(lambda x: x.mean() * x.shape[0], leaf(3, 4), dynamic=True)
    for given in (leaf(3, 4), leaf(5, 2)):
        *_, gradient = evaluate(joint, [given.detach(), torch.ones((), dtype=torch.float64)])
        expected = torch.full_like(given, given.shape[0] / given.numel())
        torch.testing.assert_close(gradient, expected)
    assert aten.scalar_tensor.default not in targets(joint)


# Cuts ---------------------------------------------------------------------------------------------


def no_grad_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return y * x


def written_without_grad(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
    return y * x


@pytest.mark.parametrize(
    "function", [lambda x: x.sin().detach() * x, no_grad_inside, written_without_grad]
)
def test_cuts(function: Callable[[Tensor], Tensor]) -> None:
    check(function, [leaf(3)], 3)
    assert aten.cos.default not in targets(joint_of(function, leaf(3)))


# Several orders -----------------------------------------------------------------------------------


def test_the_derivative_of_an_identity_has_an_order() -> None:
    first = joint_of(lambda x: x.clone(), leaf(3))
    assert not [n for n in reverse_nodes(first) if n.target is not aten.clone.default]
    second = differentiate(first, [1], [1]).graph_module
    assert Sweep(second, [0], [0]).order == 3


def test_orders_count_up() -> None:
    x = leaf(3)
    first = joint_of(lambda x: x.sin(), x)
    second = differentiate(first, [1], [0, 1]).graph_module
    remove_dead_code(second.graph)
    assert reverse_nodes(second, 1)
    assert reverse_nodes(second, 2)
    ones = torch.ones(3, dtype=torch.float64)
    *_, dx, dt = evaluate(second, [x.detach(), ones, ones])
    torch.testing.assert_close(dx, -x.detach().sin())
    torch.testing.assert_close(dt, x.detach().cos())


def test_what_a_derivative_is_computed_from_counts_whatever_way_torch_computes_it() -> None:
    # The derivative of an overlapping `as_strided` is computed by in-place writes below autograd.
    check(lambda x: x.as_strided((4, 3), (2, 1)).sin(), [leaf(9)], 2)


# Errors -------------------------------------------------------------------------------------------


def test_an_op_without_a_derivative_is_named() -> None:
    a, x = leaf(3), plain(3)
    with pytest.raises(DifferentiationError) as raised:
        joint_of(lambda a, x: torch.igamma(a, x), a, x)
    message = str(raised.value)
    assert "aten.igamma.default at order 1" in message
    assert "test_sweep.py" in message
    assert "torch.igamma(a, x)" in message
    assert "way out" in message


def test_a_rule_that_returns_too_much(rule: Callable[[Any, Any], None]) -> None:
    def too_many(cotangent: Any, out: Any, x: Any) -> Any:
        return cotangent, cotangent

    rule(aten.sin.default, too_many)
    with pytest.raises(DifferentiationError, match="rule too_many returned 2 cotangents for 1 arg"):
        joint_of(torch.sin, leaf(3))


def test_a_rule_that_returns_no_tuple(rule: Callable[[Any, Any], None]) -> None:
    rule(aten.sin.default, lambda cotangent, out, x: cotangent)
    with pytest.raises(DifferentiationError, match="returned a tensor, not a tuple"):
        joint_of(torch.sin, leaf(3))


def test_a_rule_that_returns_another_shape(rule: Callable[[Any, Any], None]) -> None:
    def transposed(cotangent: Any, out: Any, x: Any) -> Any:
        return (cotangent.t(),)

    rule(aten.sin.default, transposed)
    with pytest.raises(DifferentiationError, match=r"transposed returned a cotangent of shape"):
        joint_of(torch.sin, leaf(3, 4))


def test_a_rule_of_the_users_own(rule: Callable[[Any, Any], None]) -> None:
    rule(aten.sin.default, lambda cotangent, out, x: (cotangent * 100,))
    x = leaf(3)
    *_, gradient = evaluate(joint_of(torch.sin, x), [x.detach(), torch.ones(3)])
    torch.testing.assert_close(gradient, torch.full((3,), 100.0))


HELD = torch.tensor(3.0)


@torch.library.custom_op("adjoint_sweep::tripled", mutates_args=())
def tripled(x: Tensor) -> Tensor:
    return x * 3


tripled.register_fake(torch.empty_like)
tripled.register_autograd(lambda ctx, cotangent: cotangent * HELD)


def test_a_derivative_that_uses_a_tensor_from_outside(rule: Callable[[Any, Any], None]) -> None:
    rule(aten.sin.default, lambda cotangent, out, x: (cotangent * HELD,))
    for function in (lambda x: torch.sin(x).sum(), lambda x: tripled(x).sum()):
        with pytest.raises(
            DifferentiationError, match="a tensor that is neither an argument nor a saved tensor"
        ) as raised:
            adjoint.grad(function)(plain(3))
        assert raised.value.source is not None
        assert raised.value.source.file == __file__
        assert "please report" not in str(raised.value)


class Widening(torch.autograd.Function):
    """Its backward returns a gradient of another shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent.new_ones(7) * cotangent.sum()


def test_a_gradient_of_another_shape_than_the_argument_is_refused() -> None:
    with pytest.raises(DifferentiationError, match="its backward returned an invalid gradient: of"):
        adjoint.grad(lambda x: Widening.apply(x).sum())(plain(3))  # type: ignore[no-untyped-call]
    compiled = torch.compile(lambda x: Widening.apply(x).sum(), backend="adjoint")  # type: ignore[no-untyped-call]
    with pytest.raises(DifferentiationError, match=r"shape \[7\] .* of shape \[3\]") as raised:
        compiled(leaf(3)).backward()
    assert raised.value.source is not None
    assert raised.value.source.file == __file__
    assert "Widening.apply(x)" in raised.value.source.text


def test_several_results() -> None:
    def function(x: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(x @ x.t() + torch.eye(3, dtype=x.dtype))
        return values.sum() + vectors.abs().sum()  # type: ignore[no-any-return]

    check(function, [leaf(3, 3)], 2)
    module = adjoint.capture(nn.LayerNorm(3).double(), leaf(2, 3)).graph_module
    assert any(node.target is operator.getitem for node in module.graph.nodes)
