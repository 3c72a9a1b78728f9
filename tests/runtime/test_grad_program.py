from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.errors import DifferentiationError
from adjoint.runtime import grad_program
from adjoint.runtime.specializations import Full, SizeSpecializations
from tests.differentiation import bridged
from tests.parity import leaf


def several(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x * k for k in range(1, 6))


def test_one_backward_graph_for_each_pattern_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grad_program, "MAX_PATTERNS", 3)
    x = leaf(3)
    compiled = bridged(several, x)
    (program,) = (compiled(x), compiled.graph.grad_programs())[1]
    order = program.derivative.order
    patterns = [order[:n] for n in range(1, len(order) + 1)] + [order[1:], order[2:]]
    for pattern in patterns:
        program.backward(pattern, (0,), {})
    # The bound is the number of outputs where that is larger; what was used longest ago is gone.
    assert list(program._backwards) == patterns[-len(order) :]


def test_each_of_many_outputs_has_its_own_derivative() -> None:
    """Not that of all with zeros for the others: zero times infinity is nan, and zeros no None."""

    def roots(x: Tensor, y: Tensor) -> list[Tensor]:
        return [(x * k).sqrt() for k in range(1, 12)] + [x * 2, y * 3]

    x, y = torch.zeros(3, dtype=torch.float64).requires_grad_(), leaf(3)
    compiled = bridged(roots, x, y)
    for place in range(13):
        ours, eager = (
            torch.autograd.grad(function(x, y)[place].sum(), (x, y), allow_unused=True)
            for function in (compiled, roots)
        )
        assert [each is None for each in ours] == [each is None for each in eager], place
        for one, other in zip(ours, eager, strict=True):
            if one is not None:
                torch.testing.assert_close(one, other)


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


def test_sizes_of_too_many_kinds_name_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x.sin().sum(), backend="adjoint", dynamic=True)
    loss = compiled(torch.rand(3, requires_grad=True))

    def make(*_: object) -> None:
        raise Full("its backward was made 8 times for sizes of different kinds")

    monkeypatch.setattr(SizeSpecializations, "find", lambda *_: None)
    monkeypatch.setattr(SizeSpecializations, "make", make)
    with pytest.raises(
        DifferentiationError, match="8 times for sizes of different kinds; now sizes are"
    ) as raised:
        loss.backward()
    assert "lambda x: x.sin().sum()" in str(raised.value)
