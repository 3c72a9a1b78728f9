from __future__ import annotations

import torch
from torch import Tensor

from adjoint.runtime import grad_program
from tests.differentiation import bridged
from tests.parity import leaf


def several(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x * k for k in range(1, 6))


def test_one_backward_graph_for_each_pattern_up_to_a_bound() -> None:
    x = leaf(3)
    compiled = bridged(several, x)
    (program,) = (compiled(x), compiled.graph.grad_programs())[1]
    order = program.derivative.order
    patterns = [order[: n + 1] for n in range(5)] + [order[n : n + 1] for n in range(1, 5)]
    for pattern in patterns:
        assert program.pattern(pattern) == pattern
        program.backward(pattern, (0,), {})
        if len(program._backwards) == grad_program.MAX_PATTERNS:
            break
    # Those that are known still have their own; others take zeros for what is missing.
    assert program.pattern(patterns[0]) == patterns[0]
    assert program.pattern((order[1], order[3])) == order


def test_gradients_that_nobody_waits_for_are_left_out() -> None:
    x, y = leaf(3, 3), leaf(3, 3)
    compiled = bridged(lambda x, y: (x @ y).tanh(), x, y)
    compiled(x, y)
    (program,) = compiled.graph.grad_programs()
    whole, _ = program.backward((0,), (0, 1), {})
    part, _ = program.backward((0,), (1,), {})
    counts = [
        [node.target for node in ready.backward.graph_module.graph.nodes].count(
            torch.ops.aten.mm.default
        )
        for ready in (whole, part)
    ]
    assert counts == [2, 1]
    assert program.backward((0,), (1,), {})[0] is part
