import torch
from torch.nn.functional import hardsigmoid, rrelu

from tests.differentiation import bridged, check
from tests.rules.rows import is_right, real

aten = torch.ops.aten


def test_hardsigmoid_has_a_second_derivative() -> None:
    is_right(hardsigmoid, (real(9) * 3).detach().requires_grad_())
    kinks = torch.tensor([-3.0, 3.0, 0.0], dtype=torch.float64, requires_grad=True)
    check(hardsigmoid, [kinks], 1)


def test_logit_has_the_derivatives_that_eager_has() -> None:
    x = torch.tensor([-0.5, 0.0, 0.1, 0.5, 0.9, 1.0, 1.5], dtype=torch.float64, requires_grad=True)
    check(lambda x: torch.logit(x), [x], 2)
    check(lambda x: torch.logit(x, 0.2), [x], 2)
    inside = torch.tensor([0.1, 0.4, 0.7], dtype=torch.float64, requires_grad=True)
    g = real(3)
    is_right(lambda g, x: aten.logit_backward(g, x, 0.2), g, inside)
    is_right(lambda g, x: aten.logit_backward(g, x), g, inside)


def test_masked_softmax_has_a_second_derivative() -> None:
    mask = torch.arange(96).reshape(2, 3, 4, 4) % 3 == 0
    is_right(lambda x: torch._masked_softmax(x, mask, 3, 2), real(2, 3, 4, 4))


def test_the_slopes_of_rrelu_are_those_that_were_drawn() -> None:
    x = real(20)
    torch.manual_seed(3)
    wanted = torch.autograd.grad(rrelu(x, training=True).sum(), x)
    torch.manual_seed(3)
    compiled = bridged(lambda x: rrelu(x, training=True), x)
    torch.manual_seed(3)
    torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), x), wanted)
    is_right(lambda x: rrelu(x, training=False), x)


def test_outside_of_training_the_gradient_of_rrelu_depends_on_its_argument() -> None:
    x = real(4)
    for function in (rrelu, bridged(rrelu, x)):
        (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (zeros,) = torch.autograd.grad(slope.sum(), x)
        assert not zeros.any()
