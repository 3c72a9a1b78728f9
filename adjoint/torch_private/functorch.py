"""The levels of `torch.func` that are active, and the tensors that they wrap."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.pyfunctorch import dispatch_functorch, temporarily_clear_interpreter_stack

from adjoint.open_types import TorchValue


def is_functorch_wrapper(value: object) -> bool:
    """Whether a level of a `torch.func` transform wraps this tensor."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(
        value
    )


def innermost(value: TorchValue) -> object:
    """The tensor below all `torch.func` wrappers of `value`."""
    while is_functorch_wrapper(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def transform_requires_grad() -> bool:
    """Whether a `torch.func` transform is calling `requires_grad_` on its own tensors."""
    return bool(torch._C._functorch.get_inplace_requires_grad_allowed())


def functorch_is_active() -> bool:
    """Whether a `torch.func` transform or a batched backward is running."""
    return torch._C._are_functorch_transforms_active()


def outside_functorch() -> contextlib.AbstractContextManager[Sequence[object]]:
    """Leave all levels of `torch.func` for a while; the context's value is their stack."""
    return temporarily_clear_interpreter_stack()


def applied_by_level(function: type, *args: object, **kwargs: object) -> object:
    """`function.apply(*args)` of a custom autograd function, by the innermost level.

    A level of `vmap` makes a batched function, by the `vmap` rule of `function` or by one that
    torch generates for it, and applies that outside of the level.
    """
    return dispatch_functorch(custom_function_call, (function, *args), kwargs)
