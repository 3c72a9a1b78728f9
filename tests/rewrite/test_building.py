from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.errors import RewriteError
from adjoint.graph.metadata import (
    CheckpointRegion,
    Mode,
    inputs_of,
    mode_of,
    region_of,
    source_of,
)
from adjoint.graph.origins import is_part, origins_of
from adjoint.rewrite.engine import rewrite, rewriting
from adjoint.rewrite.patterns import Wildcard, call
from adjoint.rewrite.rules import Edit, Traced, equation, rewrites, traced_rules
from tests.rewriting import calls, graph_of, rewritten

aten = torch.ops.aten
x = Wildcard("x")
OUTSIDE = torch.ones(3)
SIN, COS, MUL, ADD = aten.sin.default, aten.cos.default, aten.mul.Tensor, aten.add.Tensor
DOUBLE = equation("double", call(MUL, x, 2), call(ADD, call(aten.alias.default, x), x))


def test_what_takes_the_place_of_a_node_has_its_metadata() -> None:
    def function(a: Tensor) -> Tensor:
        with torch.no_grad():
            return a.sin() * 2

    module = graph_of(function, torch.ones(3))
    (old,) = (node for node in module.graph.nodes if node.target is MUL)
    old.meta["region"] = CheckpointRegion(3)
    old.meta["grad_of"], old.meta["order"] = None, 1
    made = rewrite(module, [DOUBLE], "tested")
    part, new = (node for node in made.graph.nodes if node.target in (aten.alias.default, ADD))
    for node in (part, new):
        assert source_of(node) == source_of(old)
        assert mode_of(node) == mode_of(old) == Mode(grad_enabled=False)
        assert region_of(node) == CheckpointRegion(3)
        assert node.meta["order"] == 1
    assert set(origins_of(old)) <= set(origins_of(new))
    assert not is_part(new)
    assert is_part(part)
    assert set(origins_of(old)).isdisjoint(origins_of(part))


def test_an_existing_value_stands_for_both() -> None:
    module = graph_of(lambda a: a.sin().neg().neg() + 1, torch.ones(3))
    last = next(node for node in reversed(module.graph.nodes) if node.target is aten.neg.default)
    rule = equation("n", call(aten.neg.default, call(aten.neg.default, x)), x)
    made = rewrite(module, [rule], "tested")
    sine = next(node for node in made.graph.nodes if node.target is SIN)
    assert set(origins_of(last)) < set(origins_of(sine))


def test_symbolic_sizes_are_nodes() -> None:
    @rewrites(call(aten.neg.default, x))
    def through_rows(x: Any) -> Any:
        return Traced(
            lambda t: t.reshape(t.shape[0] * t.shape[1] * 2 // 2).mul(-1).view(t.shape), [x]
        )

    made = rewritten([through_rows], lambda a: a.neg() + 1, torch.randn(3, 4), dynamic=True)
    assert made.matches == {"through-rows": 1}
    for node in made.graph_module.graph.nodes:
        flat = torch.utils._pytree.tree_leaves((node.args, node.kwargs))
        assert not any(isinstance(each, torch.SymInt) for each in flat)
    # For other sizes, too.
    (result,) = made.graph_module(torch.ones(5, 6))
    assert torch.equal(result, torch.zeros(5, 6))


def test_unused_results_of_a_replacement_are_removed() -> None:
    @rewrites(call(aten.amax.default, x, [0]))
    def by_max(x: Any) -> Any:
        return Traced(lambda t: (t.sin(), t.max(0).values)[1], [x])

    made = rewritten([by_max], lambda a: a.amax([0]) + 1, torch.randn(3, 4))
    assert calls(made.graph_module, SIN) == 0
    assert calls(made.graph_module, aten.max.dim) == 1


def test_several_outputs_are_replaced_together() -> None:
    rules = traced_rules(
        lambda x: (x.sin(), x.cos()),
        lambda x: torch.stack([x.exp(), x.exp2()]).unbind(0),
        [torch.ones(2)],
        name="both",
    )
    made = rewriting(graph_of(lambda a: a.sin() * a.cos(), torch.ones(3)), rules, "tested")
    assert made.matches == {"both": 1}
    assert calls(made.graph_module, aten.stack.default) == 1


@pytest.mark.parametrize(
    ("replacement", "why"),
    [
        (lambda t: t.add_(1), "writes to its argument"),
        (lambda t: t + OUTSIDE, "not an argument"),
        (lambda t: t.sum(), r"computes f32\[\], the pattern f32\[3\]"),
        (lambda t: t.double(), r"computes f64\[3\], the pattern f32\[3\]"),
        (lambda t: (t, t), "has 2 outputs, the pattern 1"),
        (lambda t: 3, "which is not a value of the graph"),
        (lambda t: t @ t.view(4, 4), "its replacement raised RuntimeError"),
    ],
)
def test_what_is_no_replacement(replacement: Any, why: str) -> None:
    @rewrites(call(SIN, x))
    def wrong(x: Any) -> Any:
        return Traced(replacement, [x])

    with pytest.raises(RewriteError, match=why):
        rewritten([wrong], lambda a: a.sin() * 2, torch.ones(3))


def test_what_cannot_be_built_says_why() -> None:
    other = adjoint.capture(lambda a, b: b * 2, torch.ones(2), torch.ones(5), dynamic=True)
    (size,) = inputs_of(other.graph_module.graph)[-1].meta["val"].shape
    for replacement, why in (
        (call(COS, Edit(SIN, [x])), "an edit is the whole replacement, or no part of it"),
        (
            call(aten.mm.default, x, x),
            "aten.mm.default of the replacement failed with RuntimeError",
        ),
        (call(aten.mul.Tensor, x, size), r"the size s\d+ is that of no value before it"),
    ):
        rule = equation("wrong", call(SIN, x), replacement)
        with pytest.raises(RewriteError, match=why) as raised:
            rewritten([rule], lambda a: a.sin() * 2, torch.ones(3))
        assert raised.value.source is not None
        assert raised.value.source.file == __file__
