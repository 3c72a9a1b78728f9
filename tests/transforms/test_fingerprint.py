from __future__ import annotations

import functools
import logging
import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.transforms.fingerprint import Fingerprint, fingerprint

FACTOR = 2.0


def helper(x: Tensor) -> Tensor:
    return x * FACTOR


def uses_helper(x: Tensor) -> Tensor:
    return helper(x)


def uses_global_inside(x: Tensor) -> Tensor:
    return (lambda y: y * FACTOR)(x)


def test_the_same_function_has_the_same_mark() -> None:
    scale = 3.0
    tensor = torch.ones(2)

    def function(x: Tensor) -> Tensor:
        return x * scale * tensor

    assert fingerprint(function) == fingerprint(function)
    hash(fingerprint(function))


def changed_number() -> tuple[Callable[..., Any], Callable[[], None]]:
    scale = 3.0

    def change() -> None:
        nonlocal scale
        scale = 4.0

    return lambda x: (x * scale).sum(), change


def changed_tensor() -> tuple[Callable[..., Any], Callable[[], None]]:
    held = torch.ones(2)

    def change() -> None:
        nonlocal held
        held = torch.full((2,), 5.0)

    return lambda x: (x * held).sum(), change


def changed_in_place() -> tuple[Callable[..., Any], Callable[[], None]]:
    held = torch.ones(2)
    return lambda x: (x * held).sum(), lambda: held.mul_(7)  # type: ignore[return-value]


def changed_list() -> tuple[Callable[..., Any], Callable[[], None]]:
    scales = [1.0]
    return lambda x: (x * scales[0]).sum(), lambda: scales.__setitem__(0, 2.0)


def changed_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    module = nn.Linear(2, 1)
    return lambda x: module(x).sum(), lambda: setattr(
        module, "weight", nn.Parameter(torch.full((1, 2), 9.0))
    )


def changed_mode() -> tuple[Callable[..., Any], Callable[[], None]]:
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(1.0))
    return lambda x: (module(x) + x).sum(), lambda: module.eval()  # type: ignore[return-value]


def changed_attribute() -> tuple[Callable[..., Any], Callable[[], None]]:
    class Scaled(nn.Module):
        scale = 1.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    module = Scaled()
    module.scale = 2.0
    return lambda x: module(x).sum(), lambda: setattr(module, "scale", 3.0)


def changed_object() -> tuple[Callable[..., Any], Callable[[], None]]:
    class Config:
        def __init__(self) -> None:
            self.scale = 1.0

    config = Config()
    return lambda x: (x * config.scale).sum(), lambda: setattr(config, "scale", 3.0)


def changed_inside_a_transform() -> tuple[Callable[..., Any], Callable[[], None]]:
    scale = 3.0

    def change() -> None:
        nonlocal scale
        scale = 4.0

    inner = adjoint.grad(lambda x: (x**2 * scale).sum())
    return lambda x: inner(x).sum(), change


def changed_partial() -> tuple[Callable[..., Any], Callable[[], None]]:
    scales = {"scale": 1.0}

    def function(scales: dict[str, float], x: Tensor) -> Tensor:
        return (x * scales["scale"]).sum()

    return functools.partial(function, scales), lambda: scales.update(scale=2.0)


def changed_method() -> tuple[Callable[..., Any], Callable[[], None]]:
    class Model:
        def __init__(self) -> None:
            self.scale = 1.0

        def energy(self, x: Tensor) -> Tensor:
            return (x * self.scale).sum()

    model = Model()
    return model.energy, lambda: setattr(model, "scale", 2.0)


class Config:
    def __init__(self) -> None:
        self.options: dict[str, Any] = {"scale": 1.0, "shifts": [2.0], "array": np.ones(1)}


@dataclass(slots=True)
class Settings:
    scale: float = 1.0


def changed_inside_an_object() -> tuple[Callable[..., Any], Callable[[], None]]:
    config = Config()
    return lambda x: (x * config.options["scale"]).sum(), lambda: config.options.update(scale=3.0)


def changed_array() -> tuple[Callable[..., Any], Callable[[], None]]:
    array = Config().options["array"]
    return lambda x: (x * float(array[0])).sum(), lambda: array.__setitem__(0, 3.0)


def changed_set() -> tuple[Callable[..., Any], Callable[[], None]]:
    names = {"one"}
    return lambda x: (x * len(names)).sum(), lambda: names.add("two")


def changed_slot() -> tuple[Callable[..., Any], Callable[[], None]]:
    settings = Settings()
    return lambda x: (x * settings.scale).sum(), lambda: setattr(settings, "scale", 2.0)


def changed_python_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    scope: dict[str, Any] = {"settings": ModuleType("settings")}
    scope["settings"].scale = 1.0
    exec("def function(x): return (x * settings.scale).sum()", scope)
    return scope["function"], lambda: setattr(scope["settings"], "scale", 2.0)


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.activation: Callable[[Tensor], Tensor] = torch.sin

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x * self.config.options["shifts"][0])


def changed_inside_a_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    module = nn.Sequential(Configured())
    shifts = module[0].config.options["shifts"]  # type: ignore[union-attr, index]
    return lambda x: module(x).sum(), lambda: shifts.__setitem__(0, 5.0)


def changed_function_of_a_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    module = Configured()
    return lambda x: module(x).sum(), lambda: setattr(module, "activation", torch.cos)


def new_forward_hook() -> tuple[Callable[..., Any], Callable[[], None]]:
    module = nn.Linear(2, 1)

    def change() -> None:
        module.register_forward_hook(lambda module, given, result: result * 2)

    return lambda x: module(x).sum(), change


def changed_sign_of_zero() -> tuple[Callable[..., Any], Callable[[], None]]:
    held = [0.0]
    return lambda x: (x / held[0]).sum(), lambda: held.__setitem__(0, -0.0)


def changed_behind_a_proxy() -> tuple[Callable[..., Any], Callable[[], None]]:
    held = {"scale": 1.0}
    proxy = MappingProxyType(held)
    return lambda x: (x * proxy["scale"]).sum(), lambda: held.__setitem__("scale", 2.0)


def changed_deque() -> tuple[Callable[..., Any], Callable[[], None]]:
    scales = deque([1.0])
    return lambda x: (x * scales[0]).sum(), lambda: scales.__setitem__(0, 2.0)


def changed_class() -> tuple[Callable[..., Any], Callable[[], None]]:
    base = type("Settings", (), {"scale": 1.0})
    scope: dict[str, Any] = {"Settings": type("MySettings", (base,), {})}
    exec("def function(x): return (x * Settings.scale).sum()", scope)
    return scope["function"], lambda: setattr(base, "scale", 2.0)


def _using_a_module() -> tuple[Callable[..., Any], ModuleType]:
    module = ModuleType("mine")
    exec("scale = 1.0\ndef scaled(x): return x * scale", vars(module))
    scope: dict[str, Any] = {"mine": module}
    exec("def function(x): return mine.scaled(x).sum()", scope)
    return scope["function"], module


def changed_global_of_another_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    function, module = _using_a_module()
    return function, lambda: setattr(module, "scale", 2.0)


def changed_function_of_another_module() -> tuple[Callable[..., Any], Callable[[], None]]:
    function, module = _using_a_module()
    return function, lambda: setattr(module, "scaled", lambda x: x * 3)


@pytest.mark.parametrize(
    "make",
    [
        changed_sign_of_zero,
        changed_behind_a_proxy,
        changed_deque,
        changed_class,
        changed_global_of_another_module,
        changed_function_of_another_module,
        changed_inside_an_object,
        changed_array,
        changed_set,
        changed_slot,
        changed_python_module,
        changed_inside_a_module,
        changed_function_of_a_module,
        new_forward_hook,
        changed_number,
        changed_tensor,
        changed_in_place,
        changed_list,
        changed_module,
        changed_mode,
        changed_attribute,
        changed_object,
        changed_inside_a_transform,
        changed_partial,
        changed_method,
    ],
)
def test_a_change_shows(make: Callable[[], Any]) -> None:
    function, change = make()
    x = torch.tensor([1.0, 2.0])
    gradient = adjoint.grad(function)
    torch.testing.assert_close(gradient(x), torch.func.grad(function)(x))
    change()
    torch.testing.assert_close(gradient(x), torch.func.grad(function)(x))


@pytest.mark.parametrize("function", [uses_helper, uses_global_inside])
def test_globals_of_helpers(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2)
    gradient = adjoint.grad(lambda x: function(x).sum())
    torch.testing.assert_close(gradient(x), torch.full((2,), 2.0))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    torch.testing.assert_close(gradient(x), torch.full((2,), 3.0))


def test_calls_do_not_change_what_a_function_is() -> None:
    inner = adjoint.grad(lambda x: (x**2).sum())
    compiled = torch.compile(lambda x: (x**2).sum(), backend="adjoint")
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    x = torch.ones(2)

    def function(x: Tensor) -> Tensor:
        return inner(x).sum() + compiled(x) + module(x.expand(3, 2)).sum()  # type: ignore[no-any-return]

    before = fingerprint(function)
    inner(x), compiled(x), function(x)  # type: ignore[unused-ignore]
    adjoint.grad(function)(x)
    assert fingerprint(function) == before


def test_a_look_holds_until_something_is_another_object() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    names = ["one"]
    function = functools.partial(lambda scale, x: module(x) * scale * len(names), 2.0)
    look = Fingerprint(function)
    function(torch.ones(3, 2))
    assert look.holds(function)
    assert not look.holds(functools.partial(function))
    module[0].eval()
    assert not look.holds(function)
    module[0].train()
    assert look.holds(function)
    names[0] = "two"
    assert not look.holds(function)


class OfAClass(nn.Module):
    """Uses what is not its own in every way that a method can."""

    power = 2

    def forward(self, x: Tensor) -> Tensor:
        return self.scaled(x) ** self.power + self.shift + self.offset(x)

    def scaled(self, x: Tensor) -> Tensor:
        return x * FACTOR

    @property
    def shift(self) -> float:
        return FACTOR

    @staticmethod
    def offset(x: Tensor) -> Tensor:
        return helper(x)

    def unused(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("how", ["called", "by method"])
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (None, "FACTOR", 5.0),
        (OfAClass, "power", 3),
        (OfAClass, "scaled", lambda self, x: x * 7),
        (OfAClass, "shift", property(lambda self: 1.0)),
        (OfAClass, "offset", staticmethod(lambda x: -x)),
    ],
)
def test_what_methods_use_counts(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, value: Any, how: str
) -> None:
    module, x = OfAClass(), torch.randn(3, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        return (module(x) if how == "called" else module.forward(x)).sum()

    gradient = adjoint.grad(function)
    assert torch.allclose(gradient(x), torch.func.grad(function)(x))
    if where is None:
        monkeypatch.setitem(globals(), name, value)
    else:
        monkeypatch.setattr(where, name, value)
    assert torch.allclose(gradient(x), torch.func.grad(function)(x))


def test_what_no_method_uses_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    module = OfAClass()
    look = Fingerprint(module)
    monkeypatch.setattr(OfAClass, "unused", lambda self, x: -x)
    assert look.holds(module)


def test_a_method_counts_that_a_function_found_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    # Cells are in the order of their names: the object comes before the function.
    a_module, x = OfAClass(), torch.randn(3, dtype=torch.float64)

    def later(module: OfAClass, x: Tensor) -> Tensor:
        return module.unused(x)

    def function(x: Tensor) -> Tensor:
        return later(a_module, x).sum()

    gradient = adjoint.grad(function)
    assert torch.allclose(gradient(x), torch.func.grad(function)(x))
    monkeypatch.setattr(OfAClass, "unused", lambda self, x: x * x)
    assert torch.allclose(gradient(x), torch.func.grad(function)(x))


def test_what_the_process_keeps_for_itself_means_nothing() -> None:
    """A function that logs, or uses a regular expression, is the same after an import."""
    log = logging.getLogger("adjoint.tests.held")

    def function(x: Tensor) -> Tensor:
        log.debug("called")
        return x if re.match("a", "a") and "torch" in sys.modules else -x

    look = Fingerprint(function)
    logging.getLogger("adjoint.tests.another").isEnabledFor(logging.DEBUG)
    re.match("a pattern that is new", "a")
    sys.modules["adjoint.tests.imported"] = ModuleType("imported")
    try:
        assert look.holds(function)
        assert fingerprint(function) == look.mark
    finally:
        del sys.modules["adjoint.tests.imported"]
