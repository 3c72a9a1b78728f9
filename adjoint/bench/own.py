"""A user's own function as a workload.

There are two forms. A function or module with arguments is compiled, called, and, if its result
requires grad, differentiated. A function whose first parameter is named `compile` makes its step
itself: it is given the system's compiler and returns a function without arguments that runs one
step; what that returns, if anything, is compared with eager's in its own precision.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adjoint.bench.problems import Expected, Step
from adjoint.finding import call_arguments, find_function
from adjoint.open_types import TorchValue, UserFunction
from adjoint.torch_private import trees

SYSTEMS = ("eager", "inductor", "adjoint")


@dataclass(frozen=True)
class Own:
    """A user's step, and a function that computes the expected results with eager."""

    step: Step
    expected: Callable[[], Expected]


def own_step(target: str, expression: str | None, system: str, device: str) -> Own:
    """The step of the function that `target` names, on one system."""
    with torch.device(device):
        torch.manual_seed(0)
        module, function = find_function(target)
        if makes_its_step(function):
            return _made_step(function, system)
        args, kwargs = call_arguments(module, function, expression)
    if isinstance(function, nn.Module):
        function.to(device)
    return _called_step(function, args, kwargs, system)


def makes_its_step(function: Callable[..., object]) -> bool:
    """The function takes the compiler rather than the arguments of a call."""
    if isinstance(function, nn.Module):
        return False
    return next(iter(inspect.signature(function).parameters), None) == "compile"


def _compiler(system: str) -> Callable[[UserFunction], UserFunction]:
    if system == "eager":
        return lambda function: function
    return lambda function: torch.compile(function, backend=system)


def _made_step(make: UserFunction, system: str) -> Own:
    def fresh(system: str) -> UserFunction:
        torch.manual_seed(0)
        step: UserFunction = make(_compiler(system))
        return step

    def expected() -> Expected:
        return Expected(_tensors(fresh("eager")()), in_float64=False)

    return Own(Step(fresh(system), _tensors, repeats=False), expected)


def _called_step(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    system: str,
) -> Own:
    # A function may write to its arguments and buffers: eager must start from what it was given.
    original = copy.deepcopy((args, kwargs))
    state = copy.deepcopy(function) if isinstance(function, nn.Module) else function
    compiled = _compiler(system)(function)

    def expected() -> Expected:
        try:
            wide, (wide_args, wide_kwargs) = _in_float64(state, original)
            return Expected(_call(wide, wide, wide_args, wide_kwargs))
        except RuntimeError:  # It holds float32 tensors that are not ours to change.
            return Expected(_call(state, state, *original), in_float64=False)

    step = Step(lambda: _call(compiled, function, args, kwargs), dict, repeats=False)
    return Own(step, expected)


def _call(
    run: UserFunction, owner: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, Tensor]:
    """What `run` returns, and the gradients of its sum in all leaves that require grad."""
    returned = run(*args, **kwargs)
    found = _tensors(returned)
    differentiable = [x for x in found.values() if x.requires_grad]
    if not differentiable:
        return found
    leaves = _leaves(owner, args, kwargs)
    total = torch.stack([x.abs().sum() if x.is_complex() else x.sum() for x in differentiable])
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(
        total.sum(), list(leaves.values()), allow_unused=True
    )
    named = zip(leaves, gradients, strict=True)
    return {k: x.detach() for k, x in found.items()} | {
        f"gradient of {name}": gradient for name, gradient in named if gradient is not None
    }


def _leaves(owner: object, args: object, kwargs: object) -> dict[str, Tensor]:
    """Leaves among arguments, and parameters of the module or of modules the function refers to."""
    found = _tensors((args, kwargs))
    modules: dict[str, object] = {"": owner}
    if inspect.isfunction(owner):
        mentioned = inspect.getclosurevars(owner)
        modules |= {**mentioned.globals, **mentioned.nonlocals}
    for prefix, module in modules.items():
        if isinstance(module, nn.Module):
            found |= {f"{prefix}.{name}": p for name, p in module.named_parameters()}
    return {name: x for name, x in found.items() if x.requires_grad}


def _tensors(tree: object) -> dict[str, Tensor]:
    leaves = enumerate(trees.leaves(tree))
    return {f"value {place}": x for place, x in leaves if isinstance(x, Tensor)}


def _in_float64(
    function: Callable[..., object], arguments: object
) -> tuple[UserFunction, TorchValue]:
    def wide(x: object) -> object:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return x.detach().double().requires_grad_(x.requires_grad)

    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    return function, trees.map_leaves(wide, copy.deepcopy(arguments))
