from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adjoint.errors import LoadError
from adjoint.exported.loaded import LoadedProgram
from tests.exports import exported


def scaled(x: torch.Tensor, y: torch.Tensor, power: int = 2, shift: float = 0.5) -> torch.Tensor:
    return (x * y).sin() ** power + shift


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> LoadedProgram:
    return exported(
        scaled,
        (torch.rand(4, 3), torch.rand(4, 3), 3),
        tmp_path_factory.mktemp("loaded"),
        wrt=["x"],
        dynamic={"x": {0: (2, 10)}, "y": [0]},
    )


def test_arguments_may_be_named(program: LoadedProgram) -> None:
    x, y = torch.rand(5, 3), torch.rand(5, 3)
    expected = scaled(x, y, 3)
    torch.testing.assert_close(program(x, y, 3), expected)
    torch.testing.assert_close(program(x, y=y, power=3), expected)
    torch.testing.assert_close(program(power=3, x=x, y=y), expected)


X, Y = torch.rand(4, 3), torch.rand(4, 3)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda f: f(X, Y), "exported for the arguments \\(x, y, power\\)"),
        (lambda f: f(X, Y, 3, 0.5), "exported for the arguments"),
        (lambda f: f(X, Y, 3, shift=0.5), "exported for the arguments"),
        (lambda f: f((X,), Y, 3), "its arguments have another structure"),
        (lambda f: f(X, Y, 2), "power is 2, and it was exported for 3 alone"),
        (lambda f: f(X, Y, 3.0), "power is 3.0"),
        (lambda f: f(X, Y, True), "power is True"),
        (lambda f: f(X, 1.0, 3), "y is 1.0, and no tensor"),
        (lambda f: f(X.double(), Y, 3), "x is torch.float64, and not torch.float32"),
        (lambda f: f(X[0], Y, 3), "x has 1 axes, and not 2"),
        (lambda f: f(X[:1], Y[:1], 3), r"x.shape\[0\] is 1, and it was exported for 2 to 10"),
        (lambda f: f(X.repeat(3, 1), Y.repeat(3, 1), 3), r"x.shape\[0\] is 12"),
        (lambda f: f(X[:, :2], Y, 3), r"x has the shape \[4, 2\]"),
        (lambda f: f(X, Y[:3], 3), r"sizes do not fit: not Eq"),
        (lambda f: f(X.to("meta"), Y, 3), "x is on meta, and the program takes it on cpu"),
        (
            lambda f: f(X.to_sparse(), Y, 3),
            "of layout torch.sparse_coo, and an exported program takes plain dense tensors",
        ),
        (
            lambda f: f(X, Y.clone().requires_grad_(), 3),
            "y requires grad, and it was exported with derivatives with respect to x: ",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    program: LoadedProgram, call: Callable[[Any], Any], why: str
) -> None:
    with pytest.raises(LoadError, match=why):
        call(program)


def test_it_is_no_function_to_transform(program: LoadedProgram) -> None:
    with pytest.raises(LoadError, match="exported program cannot be transformed"):
        torch.func.vmap(lambda x: program(x, Y, 3))(torch.rand(2, 4, 3))
    with pytest.raises(LoadError, match="forward mode"):
        torch.func.jvp(lambda x: program(x, Y, 3), (X,), (X,))


def test_a_mode_that_would_see_no_operators(program: LoadedProgram) -> None:
    with TorchDispatchMode(), pytest.raises(LoadError, match="TorchDispatchMode is active"):
        program(X, Y, 3)


def test_other_strides_are_laid_out(program: LoadedProgram) -> None:
    x = torch.rand(3, 4, requires_grad=True)
    program(x.t(), Y, 3).sum().backward()
    mine = x.detach().requires_grad_()
    scaled(mine.t(), Y, 3).sum().backward()
    torch.testing.assert_close(x.grad, mine.grad)


def test_it_says_what_it_takes(program: LoadedProgram) -> None:
    assert "x: float32[" in repr(program)
    assert "orders=1" in repr(program)


def test_writes_to_arguments_are_made(tmp_path: Path) -> None:
    def step(x: torch.Tensor, velocity: torch.Tensor) -> torch.Tensor:
        velocity.mul_(0.5).add_(x)
        x.sub_(velocity)
        return x.sum()

    x, v = torch.rand(6), torch.rand(6)
    loaded = exported(step, (x.clone(), v.clone()), tmp_path, orders=0)
    for _ in range(2):
        ours, theirs = [x.clone(), v.clone()], [x.clone(), v.clone()]
        torch.testing.assert_close(loaded(*ours), step(*theirs))
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(LoadError, match="share memory in another pattern"):
        loaded(x, x)


def test_views_of_arguments_are_views(tmp_path: Path) -> None:
    x = torch.rand(4, 3)
    loaded = exported(lambda x: (x.t(), x[1:] * 2), (x,), tmp_path, orders=1)
    turned, _ = loaded(x)
    assert turned._base is x or turned.untyped_storage().data_ptr() == x.data_ptr()
    with pytest.raises(LoadError, match="strides"):
        loaded(torch.rand(3, 4).t())


def test_state_is_there_by_name(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    loaded = exported(module, (torch.rand(4, 3),), tmp_path)
    assert loaded.state.keys() == {"weight", "bias"}
    torch.testing.assert_close(loaded.state["weight"], module.weight.detach())


def test_it_is_called_from_compiled_code(program: LoadedProgram) -> None:
    x = torch.rand(4, 3, requires_grad=True)
    compiled = torch.compile(lambda x: program(x * 2, Y, 3) * 2, backend="aot_eager")
    compiled(x).sum().backward()
    mine = x.detach().requires_grad_()
    (scaled(mine * 2, Y, 3) * 2).sum().backward()
    torch.testing.assert_close(x.grad, mine.grad)
