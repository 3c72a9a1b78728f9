import torch

from adjoint.rules.registry import NON_DIFFERENTIABLE, VJPS
from tests.differentiation import bridged
from tests.rules.rows import real


def test_a_draw_has_no_derivative() -> None:
    x = real(5).detach().sigmoid().requires_grad_()
    compiled = bridged(lambda p: torch.bernoulli(p) * p, x)
    out = compiled(x)
    drawn = out.detach() / x.detach()
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], drawn)


def test_an_op_has_a_rule_or_none() -> None:
    assert not NON_DIFFERENTIABLE & VJPS.keys()
