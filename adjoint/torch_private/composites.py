"""Ops that torch defines by others, in C++ and once more in Python.

The Python definitions are made for symbolic sizes.  They are not always what eager torch does: some
return a view where the C++ one returns a new tensor, a copy where it returns its argument, or use
other kernels.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch.utils._python_dispatch import TorchDispatchMode

from adjoint.torch_private import symbols, trees
from adjoint.torch_private.fake import reads_missing_data
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextlib.contextmanager
def composites_as_in_eager() -> Iterator[None]:
    """Run ops by their Python definitions where sizes are symbols, and as eager does elsewhere."""
    with contextlib.ExitStack() as stack:
        for op in _defined_in_python():
            stack.enter_context(_as_in_eager(op))
        for op, definition in _DEFINED_HERE.items():
            stack.enter_context(_defined(op, definition))
        stack.enter_context(enable_python_dispatcher())
        yield


@contextlib.contextmanager
def _as_in_eager(op: OpOverload) -> Iterator[None]:
    before = dict(op.py_kernels)
    for key in _KEYS:
        if key in before:
            op.py_kernels[key] = _chosen(op, before[key])
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.update(before)
        op._dispatch_cache.clear()


@contextlib.contextmanager
def _defined(op: OpOverload, definition: Callable[..., Any]) -> Iterator[None]:
    before = op.py_kernels.get(DispatchKey.CompositeImplicitAutograd)
    op.py_kernels[DispatchKey.CompositeImplicitAutograd] = definition
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        if before is None:
            del op.py_kernels[DispatchKey.CompositeImplicitAutograd]
        else:
            op.py_kernels[DispatchKey.CompositeImplicitAutograd] = before
        op._dispatch_cache.clear()


@contextlib.contextmanager
def by_torch_formula(op: OpOverload) -> Iterator[None]:
    """Differentiate `op` by torch's own formula for it, not through its Python definition."""
    key = "CompositeImplicitAutograd"
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
    hidden = {} if composite else {k: op.py_kernels[k] for k in _KEYS if k in op.py_kernels}
    for each in hidden:
        del op.py_kernels[each]
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        op.py_kernels.update(hidden)
        op._dispatch_cache.clear()


_QUANTILES = (
    aten.quantile.default,
    aten.quantile.scalar,
    aten.nanquantile.default,
    aten.nanquantile.scalar,
)

_CHECKS: dict[OpOverload, tuple[bool, str]] = {
    aten.istft.default: (False, "istft: the windows leave a gap between them"),
    **dict.fromkeys(_QUANTILES, (True, "quantile: q must be in the range [0, 1]")),
}
"""Ops that compare data to check arguments: how that must come out, and what is said otherwise."""


class _Deferring(TorchDispatchMode):
    """A comparison of data, which fakes have none of, comes out as it must; the run asserts it."""

    def __init__(self, answer: bool, otherwise: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.answer = answer
        self.otherwise = otherwise

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if op is not aten.equal.default:
            return op(*args, **(kwargs or {}))
        same = torch.eq(*args).all()
        torch._assert_async(same if self.answer else ~same, self.otherwise)
        return self.answer


def _deferring_checks(op: OpOverload) -> contextlib.AbstractContextManager[Any]:
    return _Deferring(*_CHECKS[op]) if op in _CHECKS else contextlib.nullcontext()


def _chosen(op: OpOverload, definition: Callable[..., Any]) -> Callable[..., Any]:
    inside = ContextVar("inside", default=False)
    general = _CORRECTED.get(op, definition)

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            # A level of `torch.func` turns to the Python dispatcher, also where that is off.
            return definition(*args, **kwargs)
        # In inference mode, what runs the op comes back here for its definition.
        if inside.get() or any(_has_symbols(leaf) for leaf in trees.leaves((args, kwargs))):
            return general(*args, **kwargs)
        token = inside.set(True)
        try:
            with no_python_dispatcher(), _deferring_checks(op):
                return op(*args, **kwargs)
        except RuntimeError as error:
            # A definition in Python asks for numbers by an op, which may be captured.
            if not reads_missing_data(error):
                raise
        finally:
            inside.reset(token)
        return general(*args, **kwargs)

    return run


@functools.cache
def _defined_in_python() -> tuple[OpOverload, ...]:
    overloads = [
        getattr(packet, name)
        for packet in (getattr(aten, each) for each in dir(aten))
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for name in packet.overloads()
    ]
    return tuple(op for op in overloads if any(key in op.py_kernels for key in _KEYS))


def _has_symbols(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in leaf.shape)
    return isinstance(leaf, symbols.SYMBOLIC)


_matmul = aten.matmul.default.py_kernels[DispatchKey.CompositeImplicitAutograd]


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A product of stacks of matrices is no view, though it is computed as one of another shape."""
    product: torch.Tensor = _matmul(one, other)
    if product._is_view() and product._base is not None:
        product = aten._unsafe_view.default(product._base, product.shape)
    return product


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Where nothing is dropped, the result is the argument."""
    return aten.native_dropout.default(x, p, train)[0] if train and p != 0 else x


_CORRECTED: dict[OpOverload, Callable[..., Any]] = {
    aten.matmul.default: _product,
    aten.dropout.default: _dropout,
}


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: list[int],
    target_lengths: list[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """The C++ definition writes the lengths into a new tensor, which a fake one cannot hold."""
    losses: torch.Tensor = aten._ctc_loss.default(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0, losses)
    if reduction == 1:
        lengths = torch.tensor(target_lengths, dtype=losses.dtype, device=losses.device)
        return (losses / lengths.clamp_min(1)).mean()
    return losses.sum() if reduction == 2 else losses


def _checked_in_the_run(op: OpOverload) -> Callable[..., Any]:
    """`op` as it is, but for when it checks its arguments."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _deferring_checks(op):
            return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return run


_DEFINED_HERE: dict[OpOverload, Callable[..., Any]] = {
    aten.ctc_loss.IntList: _ctc_loss,
    # In torch 2.11; later they do not check fakes.
    **{op: _checked_in_the_run(op) for op in _QUANTILES},
}
"""Ops that torch defines in C++ only, in a way that fake tensors do not allow."""
