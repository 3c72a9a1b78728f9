"""What `torch.func` converts is converted, and what it refuses is refused with the same error."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.errors import FallbackWarning

func: Any = torch.func


class Theirs:
    """`torch.func`, with what it lacks."""

    grad, vjp, jvp = func.grad, func.vjp, func.jvp
    jacrev, jacfwd, hessian = func.jacrev, func.jacfwd, func.hessian


NAMESPACES: tuple[Any, Any] = (adjoint, Theirs)


def scalar(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


X = torch.linspace(0.1, 1, 5, dtype=torch.float64)
PAIRS = torch.linspace(0, 1, 10, dtype=torch.float64).view(5, 2)
CONJUGATE = torch.view_as_complex(PAIRS).conj()
ROWS = torch.linspace(-1, 1, 15, dtype=torch.float64).view(3, 5)
HELD = torch.zeros(5, dtype=torch.float64)
INT = torch.arange(3)
META = torch.ones(5, device="meta")


def with_aux(besides: Any) -> Callable[[Tensor], Any]:
    return lambda x: (scalar(x), besides)


# By name: a call, and what the error says.
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "argnums empty": (
        lambda f: f.grad(scalar, ())(X),
        "argnums must be non-empty",
    ),
    "argnums float": (
        lambda f: f.grad(scalar, 0.0)(X),
        "argnums must be int or Tuple[int, ...], got: <class 'float'>",
    ),
    "argnums list": (
        lambda f: f.grad(scalar, [0])(X),
        "got: <class 'list'>",
    ),
    "argnums nothing": (
        lambda f: f.grad(scalar, None)(X),
        "got: <class 'NoneType'>",
    ),
    "argnums nothing, jacrev": (
        lambda f: f.jacrev(scalar, None)(X),
        "got: <class 'NoneType'>",
    ),
    "argnums float inside": (
        lambda f: f.jacrev(scalar, (0.0,))(X),
        "argnum must be int, got: <class 'float'>",
    ),
    "argnums repeated": (
        lambda f: f.grad(torch.dot, (0, 0))(X, X),
        "argnums elements must be unique, got (0, 0)",
    ),
    "argnums repeated from the end": (
        lambda f: f.jacrev(torch.dot, (0, -2))(X, X),
        "unique, got (0, 0)",
    ),
    "argnums too large": (
        lambda f: f.grad(scalar, 1)(X),
        "Got argnum=1, but only 1 positional inputs",
    ),
    "argnums too small": (
        lambda f: f.jacfwd(scalar, -2)(X),
        "Got argnum=-2, but only 1",
    ),
    "argnums empty, jacfwd": (
        lambda f: f.jacfwd(scalar, ())(X),
        "argnums must be non-empty",
    ),
    "an integer": (
        lambda f: f.grad(lambda n: n.sum() * 1.0)(INT),
        "dtype can require gradients",
    ),
    "a number": (
        lambda f: f.grad(lambda n: X.sum() * n)(1.0),
        "Thing passed to transform API must be Tensor, got <class 'float'>",
    ),
    "a number, vjp": (
        lambda f: f.vjp(lambda n: X.sum() * n, 1.0),
        "must be Tensor, got <class 'float'>",
    ),
    "an integer, jvp": (
        lambda f: f.jvp(lambda n: n * 1.0, (INT,), (torch.ones(3),)),
        "Expected primal to be floating point or complex, but got: torch.int64",
    ),
    "no scalar": (
        lambda f: f.grad(torch.sin)(X),
        "Expected f(*args) to return a scalar Tensor, got tensor with 1 dims",
    ),
    "no tensor": (
        lambda f: f.grad(lambda x: None)(X),
        "Expected f(*args) to return a Tensor, got <class 'NoneType'>",
    ),
    "a tuple": (
        lambda f: f.grad(lambda x: (x.sum(), x))(X),
        "to return a Tensor, got <class 'tuple'>",
    ),
    "complex": (
        lambda f: f.grad(lambda x: (x * 1j).sum())(X),
        "only for real scalar outputs but got torch.complex128",
    ),
    "complex, jacrev": (
        lambda f: f.jacrev(lambda x: x * 1j)(X),
        "Expected all outputs to be real but received complex tensor",
    ),
    "complex, jacfwd": (
        lambda f: f.jacfwd(lambda x: x * 1j)(X),
        "jacfwd: Expected all outputs to be real",
    ),
    "complex input, jacrev": (
        lambda f: f.jacrev(torch.sin)(X + 0j),
        "jacrev: Expected all inputs to be real",
    ),
    "no aux": (
        lambda f: f.grad(scalar, has_aux=True)(X),
        "output of function f should be a tuple: (output, aux)",
    ),
    "aux in a list": (
        lambda f: f.vjp(lambda x: [x, x], X, has_aux=True),
        "vjp(f, *primals): output of function f should be a tuple",
    ),
    "aux no tensor": (
        lambda f: f.grad(with_aux(3), has_aux=True)(X),
        "Expected tensors, got unsupported type <class 'int'>",
    ),
    "aux no tensor, vjp": (
        lambda f: f.vjp(with_aux("a"), X, has_aux=True),
        "unsupported type <class 'str'>",
    ),
    "aux no tensor, jvp": (
        lambda f: f.jvp(with_aux(None), (X,), (X,), has_aux=True),
        "unsupported type <class 'NoneType'>",
    ),
    "nothing": (
        lambda f: f.vjp(lambda x: None, X),
        "Expected f to be a function that has non-empty output (got output = [None])",
    ),
    "an empty tuple": (
        lambda f: f.jacrev(lambda x: ())(X),
        "vjp(f, *primals): Expected f to be a function",
    ),
    "nothing, jvp": (
        lambda f: f.jvp(lambda x: (), (X,), (X,)),
        "jvp(f, primals, tangents): Expected f to be a function",
    ),
    "a number returned": (
        lambda f: f.vjp(lambda x: 3, X),
        "to return only tensors, got unsupported type <class 'int'>",
    ),
    "an integer result": (
        lambda f: f.vjp(lambda x: x.argmax(), X),
        "All outputs of f must be floating-point or complex Tensors",
    ),
    "an integer result, jacrev": (
        lambda f: f.jacrev(lambda x: x.long())(X),
        "got Tensor with dtype torch.int64",
    ),
    "chunks of nothing": (
        lambda f: f.jacrev(scalar, chunk_size=0),
        "`chunk_size` should be greater than 0",
    ),
    "cotangent of another shape": (
        lambda f: f.vjp(torch.sin, X)[1](torch.ones(4)),
        "Mismatch in shape: grad_output[0] has a shape of torch.Size([4])",
    ),
    "cotangent that broadcasts": (
        lambda f: f.vjp(torch.sin, X)[1](torch.ones(1, 5)),
        "and output[0] has a shape of torch.Size([5])",
    ),
    "cotangent of another form": (
        lambda f: f.vjp(torch.sin, X)[1]((X,)),
        "Expected pytree structure of cotangents to be the same as",
    ),
    "cotangent that is a number": (
        lambda f: f.vjp(torch.sin, X)[1](1.0),
        "gradients can be either Tensors or None, but got float",
    ),
    "cotangent missing": (
        lambda f: f.vjp(torch.sin, X)[1](None),
        "grad can be implicitly created only for scalar outputs",
    ),
    "cotangent elsewhere": (
        lambda f: f.vjp(torch.sin, X)[1](META),
        "invalid gradient at index 0 - expected device cpu but got meta",
    ),
    "cotangent complex": (
        lambda f: f.vjp(torch.sin, X)[1](X + 0j),
        "grad_output[0] has a dtype of torch.complex128 and output[0] has",
    ),
    "cotangent real": (
        lambda f: f.vjp(torch.sin, X + 0j)[1](X),
        "both grad_output and output are required to have the same dtype",
    ),
    "tangent of another shape": (
        lambda f: f.jvp(torch.sin, (X,), (torch.ones(4),)),
        "of size [5] while the given forward gradient is of size [4]",
    ),
    "tangent of another form": (
        lambda f: f.jvp(torch.sin, (X,), [X]),
        "to have the same python structure",
    ),
    "tangents missing": (
        lambda f: f.jvp(torch.dot, (X, X), (X,)),
        "if primals is a tuple of 3 tensors, tangents also must be",
    ),
    "tangent integer": (
        lambda f: f.jvp(torch.sin, (INT * 1.0,), (INT,)),
        "Expected tangent to be floating point or complex, but got: torch.int64",
    ),
    "tangent a number": (
        lambda f: f.jvp(torch.sin, (X,), (1.0,)),
        "Expected tangents to only contain Tensors, got <class 'float'>",
    ),
    "tangent elsewhere": (
        lambda f: f.jvp(torch.sin, (X,), (META,)),
        "is not on the expected device",
    ),
    "primals in a list": (
        lambda f: f.jvp(torch.sin, [X], [X]),
        "Expected primals to be a tuple. E.g. it should be valid to call",
    ),
    "no primals": (
        lambda f: f.jvp(lambda: X, (), ()),
        "Expected primals to contain at least one Tensor",
    ),
    "strict": (
        lambda f: f.jvp(lambda x: (x, X), (X,), (X,), strict=True),
        "The output of f is independent of the inputs",
    ),
    "draws by column": (
        lambda f: f.jacfwd(lambda x: x * torch.rand(5))(X),
        "called random operation while in randomness error mode",
    ),
}


def raised_at_once(function: object, error: Exception, run: object) -> Any:
    """In the place of `in_torch`: what was refused here, before `torch.func` is asked."""
    raise error


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_same_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, says = REFUSED[name]
    with pytest.raises((RuntimeError, ValueError, TypeError), match=re.escape(says)) as theirs:
        call(Theirs)
    with pytest.raises(theirs.type, match=re.escape(says)) as mine:
        call(adjoint)
    assert mine.type is theirs.type
    monkeypatch.setattr("adjoint.transforms.compiled.in_torch", raised_at_once)
    with pytest.raises(theirs.type, match=re.escape(says)) as own:
        call(adjoint)
    assert own.type is theirs.type


CONVERTED: dict[str, Callable[[Any], Any]] = {
    "cotangent float32": lambda f: f.vjp(torch.sin, X)[1](torch.ones(5)),
    "cotangent float16": lambda f: f.vjp(torch.sin, X)[1](X.half()),
    "cotangent float64": lambda f: f.vjp(torch.sin, X.float())[1](X),
    "cotangent integer": lambda f: f.vjp(torch.sin, X)[1](torch.arange(5)),
    "cotangent boolean": lambda f: f.vjp(torch.sin, X)[1](torch.arange(5) > 2),
    "cotangent strided": lambda f: f.vjp(torch.sin, X)[1](PAIRS[:, 0]),
    "cotangent conjugate": lambda f: f.vjp(torch.sin, X + 1j)[1](CONJUGATE),
    "cotangent negative": lambda f: f.vjp(torch.sin, X)[1](torch._neg_view(X)),
    "cotangent missing": lambda f: f.vjp(scalar, X)[1](None),
    "cotangent of some": lambda f: f.vjp(lambda x: (x, X), X)[1]((X.float(), X)),
    "cotangent, history": lambda f: f.vjp(scalar, X)[1](torch.tensor(2), create_graph=False),
    "tangent float32": lambda f: f.jvp(torch.sin, (X,), (torch.ones(5),)),
    "tangent real": lambda f: f.jvp(torch.sin, (X + 0j,), (X,)),
    "strict": lambda f: f.jvp(torch.sin, (X,), (X,), strict=True),
    "an integer result": lambda f: f.grad(lambda x: x.sum().long())(X),
    "an integer result, jacfwd": lambda f: f.jacfwd(lambda x: x.long())(X),
    "argnums from the end": lambda f: f.jacrev(torch.dot, (-1, 0))(X, X + 1),
    "an empty tree": lambda f: f.grad(lambda x: torch.ones(()))(()),
    "no_grad, forward": lambda f: f.jvp(without_history, (X,), (X,)),
    "no_grad, by columns": lambda f: f.jacfwd(without_history)(X),
    "no_grad, reverse": lambda f: f.jacrev(without_history)(X),
    "no_grad, twice": lambda f: f.hessian(lambda x: without_history(x).sum())(X),
    "write under no_grad": lambda f: f.jvp(written_without_history, (X,), (X,)),
    "write under no_grad, reverse": lambda f: f.jacrev(written_without_history)(X),
    "write under no_grad, by columns": lambda f: f.jacfwd(written_without_history)(X),
    "draws": lambda f: f.jacfwd(lambda x: x * torch.rand(5).ge(2), randomness="different")(X),
    "a custom function": lambda f: f.jvp(doubled, (X,), (X,)),
    "a custom function by columns": lambda f: f.jacfwd(lambda x: doubled(x) * x)(X),
}


def without_history(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
    return y * x * x.detach()


def written_without_history(x: Tensor) -> Tensor:
    y = x.sin()
    with torch.no_grad():
        y.mul_(3)
        y[:2].add_(x[:2])
    y.data.mul_(2)
    return y * y * x


class Doubled(torch.autograd.Function):
    """Twice its argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        return cotangent * 2

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * 2


def doubled(x: Tensor) -> Tensor:
    return Doubled.apply(x)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_alike(name: str) -> None:
    mine, theirs = (CONVERTED[name](namespace) for namespace in NAMESPACES)
    torch.testing.assert_close(mine, theirs)


def test_a_tangent_that_is_more_precise_is_rounded() -> None:
    _, pushed = adjoint.jvp(torch.sin, (X.float(),), (X,))
    torch.testing.assert_close(pushed, X.float().cos() * X.float())


def retained(x: Tensor) -> Tensor:
    x.retain_grad()
    return x


INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "a write to what is captured": lambda x: HELD.add_(x).sum(),
    "requires_grad_": lambda x: x.requires_grad_().sum(),
    "requires_grad_ of another": lambda x: torch.zeros(5).requires_grad_().sum() * x.sum(),
    "retain_grad": lambda x: retained(x.sin()).sum(),
    "backward": lambda x: (x.sin().sum().backward(), x.sum())[1],
    "torch.autograd.functional": lambda x: jacobian(torch.sin, x).sum(),
}
jacobian: Any = torch.autograd.functional.jacobian


@pytest.mark.parametrize("name", INSIDE)
def test_refused_inside(name: str) -> None:
    for namespace in NAMESPACES:
        with pytest.raises(RuntimeError):
            namespace.grad(INSIDE[name])(X)
        with pytest.raises(RuntimeError):
            namespace.vjp(INSIDE[name], X)
    with pytest.raises(RuntimeError, match=r"test_contract\.py:\d+") as raised:
        adjoint.grad(INSIDE[name])(X)
    if name in ("requires_grad_", "retain_grad", "backward"):
        said = f"You are attempting to call Tensor.{name}() inside of a function being transformed"
        assert said in str(raised.value)
    assert not HELD.any()


DATA: dict[str, Callable[[Tensor], Tensor]] = {
    "a mask": lambda x: x[x > 0.5].sin().sum(),
    "a branch": lambda x: x.sin().sum() if x.sum() > 0 else x.cos().sum(),
    "a number": lambda x: (x * x.sum().item()).sum(),
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.filterwarnings("ignore:torch.func takes over")
def test_what_depends_on_data_is_left_to_torch(name: str) -> None:
    function = DATA[name]
    for sign in (1, -1, 1):
        x = X * sign
        torch.testing.assert_close(adjoint.grad(function)(x), func.grad(function)(x))
        mine, theirs = (f.vjp(function, x)[1](x.sum())[0] for f in NAMESPACES)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.filterwarnings("ignore:torch.func takes over")
def test_parameters_made_for_each_element_of_a_batch() -> None:
    def weight(x: Tensor) -> Tensor:
        return torch.nn.Parameter(x * torch.ones(2)) * x

    for namespace in (adjoint, func):
        found = namespace.vmap(weight)(torch.arange(3.0))
        torch.testing.assert_close(found, torch.tensor([[0.0, 0.0], [1.0, 1.0], [4.0, 4.0]]))


def test_errors_of_the_function_itself() -> None:
    def failing(x: Tensor) -> Tensor:
        return x.view(7)

    for namespace in NAMESPACES:
        with pytest.raises(RuntimeError, match="is invalid for input of size 5"):
            namespace.grad(failing)(X)


def test_it_is_said_once() -> None:
    def branching(x: Tensor) -> Tensor:
        return x.sin().sum() if x.sum() > 0 else x.cos().sum()

    gradient = adjoint.grad(branching)
    with pytest.warns(FallbackWarning, match=r"torch\.func takes over for .*branching") as warned:
        [gradient(X * sign) for sign in (1, -1)]
    assert len(warned) == 1


def test_no_grad_in_forward_mode_under_reverse_mode_is_left_to_torch() -> None:
    def along(f: Any, x: Tensor) -> Tensor:
        return f.jvp(without_history, (x,), (X,))[1].sum()  # type: ignore[no-any-return]

    with pytest.warns(FallbackWarning, match="no_grad inside a function"):
        found = adjoint.grad(lambda x: along(adjoint, x))(X)
    torch.testing.assert_close(found, Theirs.grad(lambda x: along(Theirs, x))(X))
    x = X.clone().requires_grad_()
    with pytest.warns(FallbackWarning, match="no_grad inside a function"):
        (found,) = torch.autograd.grad(along(adjoint, x), x)
    torch.testing.assert_close(found, torch.autograd.grad(along(Theirs, x), x)[0])
