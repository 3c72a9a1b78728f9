"""Custom autograd functions inside transforms: their backward, and their rule for `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import adjoint

func: Any = torch.func


class Derived(Function):
    """Its rule for `vmap` is derived by torch.  The derivative is not that of its value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: float) -> Any:
        return x**3 * scale, x.sum()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.scale = inputs[1]

    @staticmethod
    def backward(ctx: Any, cotangent: Any, of_sum: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 5 * x * x * cotangent * ctx.scale + 2 * of_sum, None


class Written(Derived):
    """It has a rule of its own, which is not that of its value either."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, scale: float) -> Any:
        results = [Written.apply(each * 1.5, scale) for each in x.movedim(in_dims[0], 0)]  # type: ignore[no-untyped-call]
        return tuple(map(torch.stack, zip(*results, strict=True))), (0, 0)


X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)


def applied(kind: Any) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        cubes, total = kind.apply(x.sin(), 0.5)
        return (cubes.square().sum() * total).tanh()  # type: ignore[no-any-return]

    return loss


# With the function inside, in one program each.
TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda f, loss: f.vmap(loss)(X),
    "vmap of grad": lambda f, loss: f.vmap(f.grad(loss))(X),
    "vmap of torch's grad": lambda f, loss: f.vmap(func.grad(loss))(X),
    "torch's vmap of grad": lambda f, loss: func.vmap(f.grad(loss))(X),
    "vmap of vmap": lambda f, loss: f.vmap(f.vmap(loss), in_dims=1)(
        X.view(4, 1, 3).expand(4, 2, 3)
    ),
    "grad of vmap": lambda f, loss: f.grad(lambda x: f.vmap(loss)(x).sum())(X),
    "grad of torch's vmap": lambda f, loss: f.grad(lambda x: func.vmap(loss)(x).sum())(X),
    "grad of grad of vmap": lambda f, loss: f.grad(
        lambda x: f.grad(lambda z: f.vmap(loss)(z).sum())(x).square().sum()
    )(X),
    "jacrev of vmap": lambda f, loss: f.jacrev(f.vmap(loss))(X),
}


@pytest.mark.parametrize("kind", [Derived, Written])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_custom_functions_under_vmap(name: str, kind: Any) -> None:
    loss = applied(kind)
    mine, theirs = TRANSFORMS[name](adjoint, loss), TRANSFORMS[name](func, loss)
    torch.testing.assert_close(mine, theirs)


def test_a_batch_is_differentiated_by_autograd() -> None:
    x, y = (X.clone().requires_grad_() for _ in range(2))
    loss = applied(Derived)
    (mine,) = torch.autograd.grad(adjoint.vmap(loss)(x).sum(), x, create_graph=True)
    (theirs,) = torch.autograd.grad(func.vmap(loss)(y).sum(), y, create_graph=True)
    torch.testing.assert_close(mine, theirs)
    mine.square().sum().backward()
    theirs.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


class Misruled(Derived):
    """Its rule returns no axes."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, scale: float) -> Any:
        return x


def test_errors_of_a_rule_are_torchs() -> None:
    with pytest.raises(RuntimeError, match="to have two returns"):
        adjoint.vmap(applied(Misruled))(X)
