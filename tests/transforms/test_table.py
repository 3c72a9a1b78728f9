"""Programs are found again: for functions made anew, for other sizes, for other tensors."""

from __future__ import annotations

import functools
import gc
import random
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint import compiler
from adjoint.capture import direct
from adjoint.errors import FallbackWarning
from adjoint.transforms import table
from tests.parity import plain

func: Any = torch.func


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


def close(mine: Any, theirs: Any) -> None:
    torch.testing.assert_close(mine, theirs)


# Functions that are made anew ---------------------------------------------------------------------


@dataclass
class Model:
    """An object whose methods are differentiated."""

    weight: Tensor
    power: int = 2

    def energy(self, x: Tensor) -> Tensor:
        return (x.sin() * self.power * self.weight).sum()


def scaled(scale: Tensor, x: Tensor) -> Tensor:
    return (x.sin() * scale).sum()


ANEW: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "a lambda": lambda f, x, w: f.grad(lambda z: (z.sin() * z).sum())(x),
    "over a tensor": lambda f, x, w: f.grad(lambda z: (z.sin() * w).sum())(x),
    "over two, one an argument": lambda f, x, w: f.grad(lambda z: (z.sin() * w * x).sum())(x),
    "over a container": lambda f, x, w: f.grad(lambda z, d={"w": [w]}: (z * d["w"][0]).sum())(x),
    "of a transform": lambda f, x, w: f.grad(lambda z: f.grad(lambda y: (y**3 * w).sum())(z).sum())(
        x
    ),
    "by rows of columns": lambda f, x, w: f.hessian(lambda z: (z.sin() * w).sum())(x),
    "partial": lambda f, x, w: f.grad(functools.partial(scaled, w))(x),
    "a method": lambda f, x, w: f.grad(Model(w).energy)(x),
    "of an object": lambda f, x, w: f.grad((lambda m: lambda z: m.energy(z))(Model(w)))(x),
    "pushed": lambda f, x, w: f.jvp(lambda z: z.sin() * w, (x,), (w,)),
    "pulled": lambda f, x, w: f.vjp(lambda z: z.sin() * w, x)[1](x),
    "an argument that is an object": lambda f, x, w: f.grad(lambda z, m: m.energy(z))(x, Model(w)),
}


@pytest.mark.parametrize("name", ANEW)
def test_a_function_made_anew_is_captured_once(name: str, captures: list[Any]) -> None:
    for _ in range(4):
        x, w = plain(3), plain(3)
        close(ANEW[name](adjoint, x, w), ANEW[name](func, x, w))
    assert len(captures) == 1


def test_modules_made_anew_with_other_parameters(captures: list[Any]) -> None:
    def check(activation: nn.Module) -> None:
        module = nn.Sequential(nn.Linear(3, 4), activation, nn.Linear(4, 1)).double()
        x = plain(2, 3)
        mine, theirs = (f.grad(lambda z: module(z).sum())(x) for f in (adjoint, func))
        close(mine, theirs)

    for _ in range(3):
        check(nn.Tanh())
    assert len(captures) == 1
    check(nn.Sigmoid())
    assert len(captures) == 2


def test_a_module_with_parameters_for_each_call(captures: list[Any]) -> None:
    module = nn.Linear(3, 1).double()

    def loss(parameters: Any, x: Tensor) -> Tensor:
        return func.functional_call(module, parameters, (x,)).square().sum()  # type: ignore[no-any-return]

    for _ in range(3):
        parameters = {name: plain(*each.shape) for name, each in module.named_parameters()}
        x = plain(2, 3)
        mine, theirs = (
            f.grad(lambda p: loss(p, x))(parameters)  # noqa: B023
            for f in (adjoint, func)
        )
        close(mine, theirs)
    assert len(captures) == 1


settings: Any = types.ModuleType("settings")
settings.inner = types.ModuleType("settings.inner")


def _set(value: Any) -> Callable[[], Any]:
    """A function that reads what is set, deep inside modules and objects of Python."""
    settings.inner.config = types.SimpleNamespace(scale=value)
    return lambda: settings.inner.config.scale


def test_what_a_function_reads_is_never_stale() -> None:
    x = plain(3)
    for value in (1.0, 2.0, 2.0, -0.0, plain(3), plain(3), plain(1), 3):
        read = _set(value)
        mine, theirs = (
            f.grad(lambda z: (z.sin() * read()).sum())(x)  # noqa: B023
            for f in (adjoint, func)
        )
        close(mine, theirs)


def test_transforms_of_torch_inside_are_told_apart() -> None:
    def outer(f: Any, argnums: Any) -> Any:
        inner = func.grad(lambda y, z: (y**2 * z**3).sum(), argnums=argnums)
        return f.grad(lambda x: inner(x, 2 * x).sum())

    x = plain(3)
    for argnums in (0, 1, 0):
        close(outer(adjoint, argnums)(x), outer(func, argnums)(x))
    for argnums in (0, 1, 0):
        inner = adjoint.grad(lambda y, z: (y**2 * z**3).sum(), argnums=argnums)
        close(adjoint.grad(lambda x: inner(x, 2 * x).sum())(x), outer(func, argnums)(x))  # noqa: B023


class Hidden:
    """Holds its tensor where nobody looks."""

    __slots__ = ("get",)

    def __init__(self, tensor: Tensor) -> None:
        self.get = iter([tensor] * 9).__next__


def test_a_tensor_that_nobody_sees_belongs_to_its_function() -> None:
    x = plain(3)
    for _ in range(3):
        tensor = plain(3)
        hidden = Hidden(tensor)
        mine = adjoint.grad(lambda z: (z.sin() * hidden.get()).sum())(x)  # noqa: B023
        close(mine, x.cos() * tensor)


# What a function changes --------------------------------------------------------------------------


class Caching(nn.Module):
    """Keeps what it made first."""

    def __init__(self) -> None:
        super().__init__()
        self.cached: Any = None

    def forward(self, x: Tensor) -> Tensor:
        if self.cached is None:
            self.cached = torch.full((3,), 2.0, dtype=torch.float64)
        return (x * self.cached).sum()  # type: ignore[no-any-return]


def _counting() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    seen: list[int] = []

    def function(x: Tensor) -> Tensor:
        seen.append(len(seen))
        return (x * len(seen)).sum()

    return function, lambda: seen


def _rebinding() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    count = 0

    def function(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return (x * count).sum()

    return function, lambda: count


def _caching() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    module = Caching()
    return lambda x: module(x), lambda: type(module.cached)


def _of_python() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    random.seed(3)
    return lambda x: (x * random.random()).sum(), random.getstate


def _of_numpy() -> tuple[Callable[[Tensor], Tensor], Callable[[], Any]]:
    np.random.seed(3)
    return lambda x: (x * np.random.rand()).sum(), lambda: np.random.get_state()[1].tolist()  # type: ignore[index]


@pytest.mark.parametrize("make", [_counting, _rebinding, _caching, _of_python, _of_numpy])
@pytest.mark.filterwarnings("ignore:torch.func takes over")
def test_what_a_function_changes_is_changed_once_in_each_call(make: Callable[[], Any]) -> None:
    x = plain(3)
    found = []
    for f in (adjoint, func):
        function, state = make()
        found.append(([f.grad(function)(x) for _ in range(3)], state()))
    (mine, one), (theirs, other) = found
    close(mine, theirs)
    assert one == other


def test_a_change_that_no_graph_makes_is_told_with_the_line() -> None:
    calls: dict[str, int] = {}
    for function, why in (
        (
            lambda x: x.sum() * calls.setdefault("it", 1),
            "a change of what it holds: a graph has no such",
        ),
        (lambda x: (x * random.random()).sum(), "random numbers of Python or NumPy: a graph has"),
    ):
        with pytest.warns(FallbackWarning, match=why) as warned:
            adjoint.grad(function)(plain(3))
        assert warned[0].filename == __file__
        assert f"{__file__}:{warned[0].lineno} in " in str(warned[0].message)


# Sizes --------------------------------------------------------------------------------------------


def vector(x: Tensor) -> Tensor:
    return x.sin() * x.exp().sum()


def scalar(x: Tensor) -> Tensor:
    return vector(x).sum()


SIZED: dict[str, Callable[[Any], Callable[[Tensor], Any]]] = {
    "grad": lambda f: f.grad(scalar),
    "jacrev": lambda f: f.jacrev(vector),
    "jacfwd": lambda f: f.jacfwd(vector),
    "hessian": lambda f: f.hessian(scalar),
    "jvp": lambda f: lambda x: f.jvp(vector, (x,), (x.cos(),)),
    "vjp": lambda f: lambda x: f.vjp(vector, x)[1](x.cos()),
    "grad of grad": lambda f: f.grad(lambda x: f.grad(scalar)(x).square().sum()),
}


@pytest.mark.parametrize("name", SIZED)
def test_one_program_for_many_sizes(name: str, captures: list[Any]) -> None:
    mine, theirs = (SIZED[name](f) for f in (adjoint, func))
    for size in (4, 5, 6, 3, 12, 2, 9, 17, 4):
        x = plain(size)
        close(mine(x), theirs(x))
    assert len(captures) <= 2


def test_empty_tensors_and_single_elements_are_of_their_own_kind(captures: list[Any]) -> None:
    mine, theirs = adjoint.grad(scalar), func.grad(scalar)
    for size in (3, 0, 1, 5, 1, 0, 4, 2):
        x = plain(size)
        close(mine(x), theirs(x))
    assert len(captures) <= 4


def test_sizes_may_be_symbols_at_once_or_never(captures: list[Any]) -> None:
    at_once, never = adjoint.grad(scalar, dynamic=True), adjoint.grad(scalar, dynamic=False)
    for size in range(2, 6):
        x = plain(size)
        close(at_once(x), func.grad(scalar)(x))
    assert len(captures) == 1
    for size in range(2, 6):
        never(plain(size))
    assert len(captures) == 5


def test_sizes_of_tensors_that_the_function_holds(captures: list[Any]) -> None:
    x = plain(3)
    for size in (4, 5, 6, 7, 8):
        batch = plain(size, 3)
        mine, theirs = (
            f.grad(lambda z: (batch @ z).tanh().sum())(x)  # noqa: B023
            for f in (adjoint, func)
        )
        close(mine, theirs)
    assert len(captures) == 2


def test_branches_on_sizes_are_checked_in_each_call(captures: list[Any]) -> None:
    def branching(x: Tensor) -> Tensor:
        if x.shape[0] > 6:
            return (x.sin() if x.shape[0] % 2 else x.cos()).sum()
        return x.exp().sum()

    mine, theirs = adjoint.grad(branching), func.grad(branching)
    for size in (4, 5, 6, 7, 8, 9, 10, 3, 20, 21):
        x = plain(size)
        close(mine(x), theirs(x))
    assert len(captures) == 4


def test_sizes_that_become_equal_or_broadcast(captures: list[Any]) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sin().sum()

    mine, theirs = (f.grad(function, (0, 1)) for f in (adjoint, func))
    for one, other in ((3, 3), (4, 4), (5, 1), (1, 5), (6, 6), (1, 7), (7, 1), (1, 1)):
        x, y = plain(2, one), plain(2, other)
        close(mine(x, y), theirs(x, y))
    assert len(captures) <= 8


def test_strides_are_checked_in_each_call(captures: list[Any]) -> None:
    mine, theirs = adjoint.grad(scalar), func.grad(scalar)
    for size in (3, 4, 5, 6, 7):
        for x in (
            plain(size, 4),
            plain(4, size).t(),
            plain(size, 8)[:, ::2],
            plain(4).expand(size, 4),
            plain(2 * size, 4)[::2],
            plain(3, size + 1)[:, :-1],
            plain(3, 2 * size)[:, ::2],
        ):
            close(mine(x), theirs(x))
    assert len(captures) <= 14


def test_derivatives_of_programs_for_many_sizes() -> None:
    mine, theirs = adjoint.grad(scalar), func.grad(scalar)
    for size in (3, 4, 5, 2, 7):
        x = plain(size).requires_grad_()
        results = [torch.autograd.grad(f(x).square().sum(), x)[0] for f in (mine, theirs)]
        close(*results)


def test_sizes_of_too_many_kinds_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_SIZE_VERSIONS", 3)

    def odd(x: Tensor) -> Tensor:
        return x.sin().sum() * int(x.shape[0])

    mine, theirs = adjoint.grad(odd), func.grad(odd)

    def run() -> None:
        for size in range(3, 10):
            x = plain(size)
            close(mine(x), theirs(x))

    with pytest.warns(FallbackWarning, match=": 3 programs are for other sizes") as warned:
        run()
    assert len(warned) == 1


# Bounds -------------------------------------------------------------------------------------------


def test_a_function_that_means_something_else_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_MISSES", 3)
    x = plain(3)

    def run() -> None:
        for number in range(7):
            mine = adjoint.grad(lambda z, n=float(number): (z * n).sum())(x)
            close(mine, torch.full_like(x, number))

    with pytest.warns(FallbackWarning, match="3 functions in a row with the same") as warned:
        run()
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_arguments_that_mean_something_else_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_MISSES", 3)
    x = plain(3)

    def scaled(z: Tensor, factor: float) -> Tensor:
        return (z * factor).sum()

    gradient = adjoint.grad(scaled)

    def run() -> None:
        for number in range(7):
            close(gradient(x, float(number)), torch.full_like(x, number))

    with pytest.warns(FallbackWarning, match="3 programs in a row were used once") as warned:
        run()
    assert len(warned) == 1
    assert warned[0].filename == __file__


def test_programs_go_with_the_code_of_their_function() -> None:
    scope: dict[str, Any] = {"adjoint": adjoint}
    exec("def run(x): return adjoint.grad(lambda z: (z.sin() * z).sum())(x)", scope)
    before = len(table._TABLE)
    close(scope["run"](plain(3)).shape, torch.Size([3]))
    assert len(table._TABLE) == before + 1
    del scope
    gc.collect()
    assert len(table._TABLE) == before


def test_tensors_are_not_kept() -> None:
    def run(x: Tensor, held: Tensor) -> list[Any]:
        adjoint.grad(lambda z: (z.sin() * held).sum())(x)
        return [weakref.ref(x), weakref.ref(held)]

    gone = run(plain(3), plain(3))
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_programs_of_one_code_are_bounded() -> None:
    def made(number: int) -> Any:
        return lambda z: (z * number).sum()

    x, first = plain(3), made(0)
    transforms = [adjoint.grad(made(number)) for number in range(table.MAX_MEANINGS + 3)]
    for number, each in enumerate(transforms):
        close(each(x), torch.full_like(x, number))
    owned = table._TABLE[first.__code__]
    assert len(owned.programs) == table.MAX_MEANINGS
