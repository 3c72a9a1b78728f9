"""Random joint graphs mean the same after each pass alone, and after all of them in order.

Compared are values and first derivatives, which a joint graph returns, and second derivatives,
which autograd takes through the interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx

import adjoint
from adjoint.differentiate.sweep import differentiate
from adjoint.graph.copying import copied
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import value_of
from adjoint.graph.verify import verify
from adjoint.optimize.compositions import compose_for_torch
from adjoint.passes import Pass
from adjoint.pipeline import CLOSE_SOFTMAX, FORWARD, JOINT, OPEN_SOFTMAX, POST, lowering, primal
from adjoint.rewrite.engine import MATCHES
from adjoint.target import cpu_target
from tests.differentiate.test_random_derivatives import BINARY, QUIETLY, UNARY, run

aten = torch.ops.aten
Op = Callable[..., Tensor]
SHAPE = (3, 4)

# What the passes look for, in values of shape (3, 4).
REWRITTEN: dict[str, Op] = {
    "t": lambda x: x.t().sin().t(),
    "t_t": lambda x: x.t().t(),
    "views": lambda x: x.reshape(12).view(4, 3).view(2, 6).reshape(SHAPE),
    "permutes": lambda x: x.reshape(3, 2, 2).permute(2, 0, 1).permute(1, 0, 2).reshape(SHAPE),
    "axes": lambda x: x.unsqueeze(0).unsqueeze(2).squeeze(2).squeeze(0),
    "expands": lambda x: x[:, :1].expand(3, 4) * x,
    "expand_twice": lambda x: x - x.sum(0, keepdim=True).expand(1, 4).expand(3, 4),
    "expand_left": lambda x: x.mean().expand(3, 4) + x,
    "one": lambda x: (x * 1) / 1.0,
    "ones": lambda x: x * torch.ones_like(x),
    "zero": lambda x: x.tanh() - 0,
    "first_power": lambda x: x.sin() ** 1,
    "square": lambda x: x.tanh() ** 2,
    "zeroth_power": lambda x: x.tanh() ** 0 + x,
    "negations": lambda x: x.sin().neg().neg(),
    "difference": lambda x: x + -(x.cos()),
    "sum_of": lambda x: x - -(x.cos()),
    "negative_scale": lambda x: -(x.sin() * 0.3),
    "casts": lambda x: x.float().double().float().double() + x,
    "clone": lambda x: x.clone() * 2,
    "constants": lambda x: x * (torch.full(SHAPE, 2.0, dtype=x.dtype) * 0.25),
    "taken_apart": lambda x: x[0] * x[1].sin() + x[2] * x.unbind(0)[1] + x,
    "put_together": lambda x: torch.stack([each.sin() for each in x.unbind(1)], 1),
    "halves": lambda x: torch.cat([x[:, :1].sin(), x[:, 1:].cos() * x[:, :1]], 1),
    "stack_select": lambda x: torch.stack([x.sin(), x.cos()]).select(0, 1) + torch.cat([x, x])[:3],
    # Products of bounded numbers: the order of a sum shows in the last digits only.
    "same_weight": lambda x: (x.sin() @ (w := x.t().tanh()) + x.cos() @ w) @ x.sin(),
    "short_products": lambda x: (
        (y := x.sin())[:1].t() @ y[1:2] + y[2:].t() @ y[:1].cos() + y[1:2].t() @ y[2:]
    )[:3],
    "products_in_rows": lambda x: torch.cat(
        [(y := x.sin())[:1] @ (w := y.t() @ x.cos()), y[1:].cos() @ w]
    ),
    "one_row": lambda x: ((y := x.sin())[:1].expand(3, 4) @ y.t()) @ y.cos(),
    "one_column": lambda x: (y := x.sin()) @ y[0].unsqueeze(1).expand(4, 4),
    "summed_rows": lambda x: (y := x.sin()) - (y @ y.cos().t() @ y).sum(0, keepdim=True).tanh(),
    "equal_rows": lambda x: x[:1].sin().expand(3, 4).sum(0) * x.cos(),
    "bool": lambda x: x * torch.ones(SHAPE, dtype=torch.bool).to(x.dtype),
    "copy": lambda x: x.sin().clone().cos(),
    "same_cast": lambda x: torch.ops.aten._to_copy.default(x.sin(), dtype=x.dtype).cos(),
    "same_permutation": lambda x: x.sin().permute(0, 1).cos(),
    "expand_more": lambda x: x.mean().expand(4).expand(3, 4) @ x.sin().t() @ x.cos(),
    "softmax": lambda x: (p := (x - x.amax(-1, keepdim=True)).exp()) / p.sum(-1, keepdim=True),
    "log_softmax": lambda x: (
        (y := x - x.amax(0, keepdim=True).detach()) - y.exp().sum(0, keepdim=True).log()
    ),
    # A softmax that is opened, because the numbers it takes are narrower than its own.
    "wider_log_softmax": lambda x: x.float().sin().double().log_softmax(-1) + x,
    "shifted_softmax": lambda x: torch.softmax(x - x.max(1, keepdim=True)[0], 1),
    "all_parts": lambda x: torch.cat(x.sin().split(3, 1), 1).cos(),
}


def _after(write: Callable[[Tensor, Tensor], object]) -> Op:
    """An op that writes to a copy of its argument."""

    def op(x: Tensor) -> Tensor:
        copy = x.sin()
        write(copy, x)
        return copy

    return op


WRITES: dict[str, Op] = {
    "write_row": _after(lambda y, x: y[1].copy_(x[0])),
    "write_columns": _after(lambda y, x: y[:, 1:3].mul_(x[:, :1])),
    "write_rows": _after(lambda y, x: y.index_put_((torch.tensor([2, 0]),), x[:2].cos())),
    "write_sums": _after(lambda y, x: y.index_add_(1, torch.tensor([1, 1]), x[:, 2:])),
    "write_flat": _after(lambda y, x: y.view(-1)[3:7].fill_(0.5)),
    "write_turned": _after(lambda y, x: y.t()[1].add_(x[:, 0])),
    "write_diagonal": _after(lambda y, x: y[:, 1:].diagonal().copy_(x[:, 2])),
    "write_twice": _after(lambda y, x: (y[0].mul_(y[1]), y[1].copy_(y[0] * x[2]))),
}
REWRITTEN.update(WRITES)
ATTENTION: dict[str, Op] = {
    "attend": lambda x, y: torch.softmax(x @ y.t() / 2, -1) @ x,
    "attend_heads": lambda x, y: (
        (
            torch.softmax(
                x.reshape(3, 2, 2).transpose(0, 1) @ y.reshape(3, 2, 2).permute(1, 2, 0), -1
            )
            @ x.reshape(3, 2, 2).transpose(0, 1)
        )
        .transpose(0, 1)
        .reshape(SHAPE)
    ),
    "attend_turned": lambda x, y: (x.t() @ torch.softmax(y @ x.t() * y.mean(), 0)).t().contiguous(),
    "attend_before": lambda x, y: (
        (x @ y.t()).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
        @ y
    ),
}
# Cotangents of two casts of one value are cast and added, or added and cast.
ROUNDED = {"casts", "wider_log_softmax"}
OPS = {**UNARY, **BINARY, **REWRITTEN, **ATTENTION}
BOTH = {*BINARY, *ATTENTION}

place = st.integers(0, 4)
step = st.one_of(
    st.tuples(st.sampled_from(sorted(REWRITTEN)), place),
    st.tuples(st.sampled_from(sorted(UNARY)), place),
    st.tuples(st.sampled_from(sorted(BOTH)), place, place),
)
PROGRAMS = st.lists(step, min_size=3, max_size=12)


def joint_graph(
    program: Sequence[Any], seed: int, before: Sequence[Pass] = ()
) -> tuple[fx.GraphModule, list[Any]]:
    """The joint graph of a random program, and what to call it with.

    `before`: passes that run on the program before it is differentiated.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(value: Any) -> Tensor:
        return torch.randn(value.shape, dtype=torch.float64, generator=generator).requires_grad_()

    inputs = [drawn(torch.empty(SHAPE)) for _ in range(2)]

    def function(*given: Tensor) -> list[Tensor]:
        # What is a view of an input would be made by the caller.
        return [each.sin() for each in run(OPS, program, 2, *given)]

    captured = adjoint.capture(function, *inputs)
    outputs = range(len(captured.outputs))
    primal_graph = captured.graph_module
    for each in before:
        primal_graph = each(primal_graph)
    verify(primal_graph)
    joint = differentiate(primal_graph, outputs, [0, 1]).graph_module
    tangents = [drawn(value_of(node)) for node in joint.graph.find_nodes(op="placeholder")[2:]]
    return joint, [*inputs, *tangents]


def results(joint: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
    """What the graph returns, and derivatives of that."""
    returned = [each for each in evaluate(compose_for_torch(joint), inputs) if each is not None]
    total = sum((each * math.sin(1 + n)).sum() for n, each in enumerate(returned))
    assert isinstance(total, Tensor)
    second: Any = torch.autograd.grad(total, list(inputs), allow_unused=True)
    return [*returned, *(torch.zeros(()) if each is None else each for each in second)]


def agree(before: Sequence[Any], after: Sequence[Any], what: str, tolerance: float) -> None:
    for one, other in zip(before, after, strict=True):
        if one.dim() != other.dim():  # A derivative that is known to be zero.
            one, other = (
                each.expand(max(one.shape, other.shape, key=len)) for each in (one, other)
            )
        torch.testing.assert_close(
            other, one, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m: f"{what}: {m}"
        )


PRIMAL = primal((0, 1))
PASSES: list[Pass] = [*PRIMAL, *dict.fromkeys((*JOINT, *FORWARD, *POST))]
# A graph is not differentiated after these, so that only values are compared.
LOWERING = lowering(cpu_target(), overwrites=True)

# Integers have no derivatives: `test_quantized.py` has their products.
OF_INTEGERS = {"scale-the-product", "scale-the-weight"}

# What the library of a CPU does otherwise: `test_convolution_bias.py` has it.
ON_A_GPU = {"add-bias-apart"}


def more_nodes(each: Pass, made: fx.GraphModule) -> int:
    """How many nodes a pass may add: a row that something else reads is multiplied besides, and a
    vector is a matrix of one row."""
    matches: dict[str, int] = made.meta.pop(MATCHES, {})
    return 2 * sum(matches.values()) if each.name == "push-broadcasts" else 0


def _tensors(outputs: Sequence[Any]) -> list[Tensor]:
    return [each for each in outputs if each is not None]


def check_program(program: Sequence[Any], seed: int) -> None:
    joint, inputs = joint_graph(program, seed)
    expected = results(joint, inputs)
    tolerance = 1e-5 if any(name in ROUNDED for name, *_ in program) else 1e-9
    for each in PASSES:
        given = copied(joint)
        before = str(given.graph)
        made = each(given)
        verify(made)
        if each in POST:
            assert str(given.graph) == before, f"{each.name} changes a graph that is used again"
        agree(expected, results(made, inputs), each.name, tolerance)
        if each.rules:
            assert len(made.graph.nodes) <= len(joint.graph.nodes) + more_nodes(each, made)
    made, inputs = joint_graph(program, seed, PRIMAL)
    agree(expected, results(made, inputs), "before differentiation", tolerance)
    values = evaluate(joint, [each.detach() for each in inputs])
    for each in LOWERING:
        made = each(copied(joint))
        verify(made)
        lowered = evaluate(made, [each.detach() for each in inputs])
        agree(_tensors(values), _tensors(lowered), each.name, tolerance)
    made = copied(joint)
    more = 0
    for each in (*PRIMAL, *JOINT, *FORWARD, *POST):
        made = each(made)
        more += more_nodes(each, made)
    verify(made)
    agree(expected, results(made, inputs), "all passes", tolerance)
    assert len(made.graph.nodes) <= len(joint.graph.nodes) + more


@settings(QUIETLY, max_examples=12)
@given(PROGRAMS, st.integers(0, 1000))
def test_random_joint_graphs(program: list[Any], seed: int) -> None:
    check_program(program, seed)


@pytest.mark.slow
@settings(QUIETLY, max_examples=2000)
@given(PROGRAMS, st.integers(0, 10**6))
def test_many_random_joint_graphs(program: list[Any], seed: int) -> None:
    check_program(program, seed)


def test_every_rule_applies_to_some_program() -> None:
    """So random programs go through every rule, not only through every pass."""
    applied: set[str] = set()

    def noted(each: Pass) -> Pass:
        def run(graph_module: fx.GraphModule) -> fx.GraphModule:
            made = each(graph_module)
            matches: dict[str, int] = made.meta.pop(MATCHES, {})
            applied.update(rule for rule, count in matches.items() if count)
            return made

        return Pass(each.name, run)

    for name in (*REWRITTEN, *ATTENTION):
        program = [(name, *([0, 1] if name in BOTH else [0]))]
        made, _ = joint_graph(program, 0, [noted(each) for each in PRIMAL])
        for each in dict.fromkeys((*JOINT, *POST)):
            made = noted(each)(made)
    assert {rule.name for each in PASSES for rule in each.rules} <= applied | OF_INTEGERS | ON_A_GPU


def test_a_softmax_is_opened_and_closed() -> None:
    """So random programs go through these passes, which have no rules."""
    joint, _ = joint_graph([("wider_log_softmax", 0)], 0)
    whole = aten._log_softmax.default
    found = []
    for each in (*JOINT, *FORWARD):
        joint = each(joint)
        if each in (OPEN_SOFTMAX, CLOSE_SOFTMAX):
            found.append(len(joint.graph.find_nodes(op="call_function", target=whole)))
    assert found == [0, 1]


@pytest.mark.parametrize("name", [*REWRITTEN, *ATTENTION])
def test_each_op_alone(name: str) -> None:
    check_program([(name, *([0, 1] if name in BOTH else [0]))], 0)
