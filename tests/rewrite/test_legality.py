from __future__ import annotations

import torch
from torch import Tensor

from adjoint.rewrite.engine import rewriting
from adjoint.rewrite.patterns import Wildcard, call
from adjoint.rewrite.rules import equation
from tests.rewriting import graph_of, rewritten

aten = torch.ops.aten


x, y, n = Wildcard("x"), Wildcard("y"), Wildcard("n")


NEG, SIN, COS, MUL = aten.neg.default, aten.sin.default, aten.cos.default, aten.mul.Tensor


NEGATIONS = equation("negations", call(NEG, call(NEG, x, shared=True)), x)


CLONES = equation("clones", call(aten.clone.default, x, ...), x)


ALIASES = equation("aliases", call((aten.alias.default, aten.view.default), x, ...), x)


def test_an_input_never_becomes_an_output() -> None:
    for function in (
        lambda a: a.clone(),
        lambda a: a.clone().view(-1),
        lambda a: (a.sin().clone(), a),
        lambda a: (b := a.sin(), b.clone()),
        lambda a: torch.ops.aten.alias(a),
    ):
        module = graph_of(function, torch.randn(3))
        made = rewriting(module, [CLONES, ALIASES], "tested").graph_module
        a = torch.randn(3)
        results = made(a)
        memory = [each.data_ptr() for each in (a, *results)]
        expected = [each.data_ptr() for each in (a, *module(a))]
        assert len(set(memory)) == len(set(expected))
        assert not any(node.op == "output" and a in node.args[0] for node in made.graph.nodes)


def test_aliases_of_inputs_stay_where_they_are_returned() -> None:
    """In torch `alias(x)` as an output, among several, becomes `x`."""
    module = graph_of(lambda a: (a.sin(), a.cos()), torch.ones(2))
    (cosine,) = module.graph.find_nodes(op="call_function", target=COS)
    cosine.target = aten.alias.default
    made = rewriting(module, [ALIASES], "tested")
    assert made.matches == {}
    made = rewriting(graph_of(lambda a: (b := a.sin(), b.clone()), torch.ones(2)), [CLONES], "c")
    first, second = made.graph_module(torch.ones(2))
    assert first.data_ptr() != second.data_ptr()
    assert made.matches == {}


def test_an_existing_value_with_a_history_does_not_replace_one_without() -> None:
    def function(a: Tensor) -> Tensor:
        with torch.no_grad():
            b = a.neg().neg()
        return b * a

    made = rewritten([NEGATIONS], function, torch.ones(2))
    assert made.matches == {}
