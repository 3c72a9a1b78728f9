from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree

import adjoint
from adjoint import compiler
from adjoint.capture import direct
from adjoint.torch_private.fake import FakeTensorMode
from tests.parity import leaf, plain


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each program that is captured."""
    seen: list[Any] = []
    original = direct.capture_call

    def counting(function: Any, args: Any, kwargs: Any, dynamic: Any) -> Any:
        seen.append(args)
        return original(function, args, kwargs, dynamic)

    monkeypatch.setattr(compiler, "capture_call", counting)
    return seen


def square(x: Tensor) -> Tensor:
    return x.square().sum()


def test_one_program_for_arguments_of_a_kind(captures: list[Any]) -> None:
    gradient = adjoint.grad(square)
    for _ in range(3):
        gradient(plain(3))
    assert len(captures) == 1
    gradient(plain(4))
    gradient(plain(3, dtype=torch.float32))
    gradient(leaf(3))
    assert len(captures) == 4
    with torch.no_grad():
        assert not gradient(leaf(3)).requires_grad


def test_numbers_are_part_of_the_kind(captures: list[Any]) -> None:
    gradient = adjoint.grad(lambda x, n: (x * n).sum())
    x = plain(2)
    for n in (1, 2, 2, 1.0):
        torch.testing.assert_close(gradient(x, n), torch.full_like(x, n))
    assert len(captures) == 3


ONES, FIVES = torch.ones(2), torch.full((2,), 5.0)


def test_arguments_that_are_one_tensor_are_of_their_own_kind() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y * y).sum()

    gradient = adjoint.grad(function)
    for y in (ONES, FIVES, ONES):
        assert torch.equal(gradient(ONES, y), y * y)
    for y in (ONES, FIVES):
        value, pull_back = adjoint.vjp(function, ONES, y)
        assert torch.equal(pull_back(torch.tensor(1.0))[1], 2 * y)
        assert adjoint.jvp(function, (ONES, y), (ONES, ONES))[0] == value


def test_an_argument_that_the_function_holds_is_of_its_own_kind() -> None:
    gradient = adjoint.grad(lambda x: (x * FIVES).sum())
    for x in (FIVES, ONES, FIVES):
        assert torch.equal(gradient(x), FIVES)


def test_what_is_written_to_matters_to_what_shares_its_memory() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        y.add_(1)
        return (x * x * y).sum()

    gradient = adjoint.grad(function)
    for parts in ((0, 4), (0, 2), (0, 0), (2, 0), (0, 4)):
        one, other = torch.ones(8), torch.ones(8)
        x, y = (one[place : place + 4] for place in parts)
        a, b = (other[place : place + 4] for place in parts)
        torch.testing.assert_close(gradient(x, y), torch.func.grad(function)(a, b))
        assert torch.equal(one, other)


def test_zeros_of_either_sign_are_not_of_one_kind() -> None:
    gradient = adjoint.grad(lambda x, y: (x / y).sum())
    x = torch.ones(2)
    assert torch.equal(gradient(x, 0.0), torch.full((2,), torch.inf))
    assert torch.equal(gradient(x, -0.0), torch.full((2,), -torch.inf))


def _module() -> tuple[Any, Callable[[], None]]:
    module = nn.Linear(2, 1)
    weight = nn.Parameter(torch.full((1, 2), 9.0))
    return module, lambda: setattr(module, "weight", weight)


def _array() -> tuple[Any, Callable[[], None]]:
    array = np.ones(2, dtype=np.float32)
    return lambda x: x * array[0].item(), lambda: array.fill(3)


def _settings() -> tuple[Any, Callable[[], None]]:
    settings = SimpleNamespace(scale=1.0)

    class Scaled:
        def __init__(self) -> None:
            self.settings = settings

        def __call__(self, x: Tensor) -> Tensor:
            return torch.mul(x, self.settings.scale)

    return Scaled(), lambda: setattr(settings, "scale", 2.0)


@pytest.mark.parametrize("make", [_module, _array, _settings])
def test_an_argument_that_is_changed_is_another(make: Callable[[], Any]) -> None:
    argument, change = make()

    def function(x: Tensor, argument: Any) -> Tensor:
        return argument(x).sum()  # type: ignore[no-any-return]

    x = torch.ones(2)
    gradient = adjoint.grad(function)
    torch.testing.assert_close(gradient(x, argument), torch.func.grad(function)(x, argument))
    change()
    torch.testing.assert_close(gradient(x, argument), torch.func.grad(function)(x, argument))


def test_an_argument_that_stays_is_compiled_for_once(captures: list[Any]) -> None:
    module = nn.Linear(2, 1)
    gradient = adjoint.grad(lambda x, module: module(x).sum())
    for _ in range(3):
        gradient(torch.ones(2), module)
    assert len(captures) == 1


def test_transforms_called_with_their_function_are_compiled_once(captures: list[Any]) -> None:
    for _ in range(3):
        adjoint.jvp(square, (plain(3),), (plain(3),))
        adjoint.hvp(square, (plain(3),), (plain(3),))
        adjoint.vjp(square, plain(3))
    assert len(captures) == 3


def test_methods_are_known_by_their_object(captures: list[Any]) -> None:
    class Model:
        def energy(self, x: Tensor) -> Tensor:
            return x.square().sum()

    model = Model()
    for _ in range(2):
        adjoint.jvp(model.energy, (plain(3),), (plain(3),))
    assert len(captures) == 1


def test_what_cannot_be_remembered_is_compiled_again(captures: list[Any]) -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Tensor) -> Tensor:
            return x.square().sum()

    function = Unhashable()
    for _ in range(2):
        adjoint.jvp(function, (plain(3),), (plain(3),))
    assert len(captures) == 2


def test_a_function_that_is_gone_is_freed() -> None:
    held = plain(3)

    def function(x: Tensor) -> Tensor:
        return (x * held).sum()

    adjoint.jvp(function, (plain(3),), (plain(3),))
    adjoint.grad(function)(plain(3))
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None


def test_autocast_and_default_dtype_are_part_of_the_kind() -> None:
    gradient = adjoint.value_and_grad(lambda x: (x @ x).sum())
    x = plain(3, 3, dtype=torch.float32)
    plainly, _ = gradient(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, _ = gradient(x)
    assert plainly.dtype == torch.float32
    assert cast.dtype == torch.bfloat16


def test_it_looks_like_the_function() -> None:
    assert adjoint.grad(square).__name__ == "square"
    assert adjoint.grad(square).__wrapped__ is square  # type: ignore[attr-defined]


def test_dynamo_leaves_alone_what_runs_from_a_frame_that_it_gave_up_on() -> None:
    torch._dynamo.reset()
    x, scale = plain(3), plain(3)

    def outer(module: Any, power: int) -> Any:
        def total(scale: Tensor) -> Tensor:
            pushed: Tensor = module.jvp(lambda z: (scale * z) ** power, (x,), (scale,))[1]
            gradient: Tensor = module.grad(lambda z: ((scale * z) ** power).sum())(x)
            return pushed.sum() + gradient.sum()

        return torch.func.grad(total)

    with torch._dynamo.config.patch(recompile_limit=1):
        for power in range(2, 7):
            compiled: Any = torch.compile(outer(adjoint, power), backend="adjoint")
            wanted: Any = outer(torch.func, power)
            torch.testing.assert_close(compiled(scale), wanted(scale))


class Counting(Tensor):
    """A tensor that counts its operators, and does not show the tensor that it is made of."""

    seen = 0
    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Counting:
        made: Counting = Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen += 1
        args, kwargs = _pytree.tree_map_only(cls, lambda each: each.held, (args, kwargs or {}))
        return _pytree.tree_map_only(Tensor, cls, op(*args, **kwargs))


KINDS: dict[str, Callable[[], Tensor]] = {
    "a class that sees operators": lambda: Counting(plain(3)),
    "a fake": lambda: FakeTensorMode().from_tensor(plain(3)),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:torch.func takes over")
def test_tensors_without_memory_of_their_own_are_left_to_torch(name: str) -> None:
    special = KINDS[name]()
    calls: dict[str, Callable[[Any], Any]] = {
        "grad": lambda f: f.grad(lambda x: (x * x).sum())(special),
        "vjp": lambda f: f.vjp(lambda x: x.sin(), special)[0],
        "vmap": lambda f: f.vmap(lambda x: x.sin())(special),
    }
    if isinstance(special, Counting):
        calls["closed over"] = lambda f: f.grad(lambda x: (x * special).sum())(plain(3))
    for call in calls.values():
        Counting.seen = 0
        expected, ops = call(torch.func), Counting.seen
        found = call(adjoint)
        assert type(found) is type(expected)
        assert Counting.seen >= 2 * ops
        if isinstance(found, Counting):
            torch.testing.assert_close(found.held, expected.held)
    message = r"its __torch_dispatch__ has to see every operator(.|\n)* at .*test_compiled\.py:\d+"
    with pytest.raises(adjoint.CaptureError, match=message):
        adjoint.capture(lambda x: x.sin(), special)
