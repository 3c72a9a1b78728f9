"""Composite ops: those that torch decomposes into others, in C++ and again in Python.

The Python decompositions support symbolic sizes, but differ from eager torch in places: some return
a view where C++ returns a new tensor, a copy where it returns its argument, or use other kernels.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

import torch
from torch._C import DispatchKey
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch.utils._python_dispatch import TorchDispatchMode

from adjoint.open_types import Callee, OpArguments, OpKeywords
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.fake import reads_missing_data
from adjoint.torch_private.operators import OpOverload

aten = torch.ops.aten

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextlib.contextmanager
def composites_as_in_eager() -> Iterator[None]:
    """Use Python decompositions only where sizes are symbolic, and C++ ones elsewhere."""
    with contextlib.ExitStack() as stack:
        for op in _defined_in_python():
            kernels = {k: _chosen(op, op.py_kernels[k]) for k in _KEYS if k in op.py_kernels}
            stack.enter_context(_python_kernels(op, kernels))
        for op, definition in _DEFINED_HERE.items():
            stack.enter_context(_python_kernels(op, {_KEYS[0]: definition}))
        stack.enter_context(enable_python_dispatcher())
        yield


@contextlib.contextmanager
def _python_kernels(
    op: OpOverload, kernels: Mapping[DispatchKey, Callable[..., object] | None]
) -> Iterator[None]:
    """Replace Python kernels of `op` for a while; None removes one."""
    before = {key: op.py_kernels.get(key) for key in kernels}
    _set_kernels(op, kernels)
    try:
        yield
    finally:
        _set_kernels(op, before)


def _set_kernels(
    op: OpOverload, kernels: Mapping[DispatchKey, Callable[..., object] | None]
) -> None:
    for key, kernel in kernels.items():
        op.py_kernels.pop(key, None)
        if kernel is not None:
            op.py_kernels[key] = kernel
    op._dispatch_cache.clear()


@contextlib.contextmanager
def by_torch_formula(op: OpOverload) -> Iterator[None]:
    """Differentiate `op` by torch's own formula, not through its Python decomposition."""
    key = "CompositeImplicitAutograd"
    can_decompose = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)
    with _python_kernels(op, {} if can_decompose else dict.fromkeys(_KEYS)):
        yield


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
"""Ops that check their arguments by `aten.equal`: the valid outcome, and the message otherwise."""


class _DeferringChecks(TorchDispatchMode):
    """`aten.equal`, which fakes cannot compute, returns the valid outcome; the run asserts it."""

    def __init__(self, valid: bool, message: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.valid = valid
        self.message = message

    def __torch_dispatch__(
        self, op: Callee, types: object, args: OpArguments = (), kwargs: OpKeywords | None = None
    ) -> object:
        if op is not aten.equal.default:
            return op(*args, **(kwargs or {}))
        same = torch.eq(*args).all()
        torch._assert_async(same if self.valid else ~same, self.message)
        return self.valid


def _deferring_checks(op: OpOverload) -> contextlib.AbstractContextManager[object]:
    return _DeferringChecks(*_CHECKS[op]) if op in _CHECKS else contextlib.nullcontext()


def _chosen(op: OpOverload, definition: Callee) -> Callee:
    inside = ContextVar("inside", default=False)
    general = _CORRECTED.get(op, definition)

    def run(*args: object, **kwargs: object) -> object:
        if torch._C._are_functorch_transforms_active():
            # `torch.func` uses the Python dispatcher even where that is disabled.
            return definition(*args, **kwargs)
        # In inference mode, the op dispatches to this kernel again.
        if inside.get() or any(_has_symbols(leaf) for leaf in trees.leaves((args, kwargs))):
            return general(*args, **kwargs)
        token = inside.set(True)
        try:
            with no_python_dispatcher(), _deferring_checks(op):
                return op(*args, **kwargs)
        except RuntimeError as error:
            # The Python decomposition reads data by an op, which can be captured.
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


def _has_symbols(leaf: object) -> bool:
    if isinstance(leaf, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in leaf.shape)
    return isinstance(leaf, symbols.SYMBOLIC)


_matmul = aten.matmul.default.py_kernels[DispatchKey.CompositeImplicitAutograd]


def _product(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A batched matrix product is no view, though the decomposition returns one."""
    product: torch.Tensor = _matmul(one, other)
    if product._is_view() and product._base is not None:
        product = aten._unsafe_view.default(product._base, product.shape)
    return product


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """If nothing is dropped, the argument itself is returned; if all is, nothing is drawn."""
    if not train or p == 0:
        return x
    return x * x.new_zeros(()) if p == 1 else aten.native_dropout.default(x, p, train)[0]


_CORRECTED: dict[OpOverload, Callee] = {
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
    """The C++ definition writes the lengths into a new tensor, for which a fake has no memory."""
    losses: torch.Tensor = aten._ctc_loss.default(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0, losses)
    if reduction == 1:
        lengths = torch.tensor(target_lengths, dtype=losses.dtype, device=losses.device)
        return (losses / lengths.clamp_min(1)).mean()
    return losses.sum() if reduction == 2 else losses


def _with_deferred_checks(op: OpOverload) -> Callable[..., object]:
    """`op`, with its argument checks deferred to the run."""

    def run(*args: object, **kwargs: object) -> object:
        with _deferring_checks(op):
            return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)

    return run


_DEFINED_HERE: dict[OpOverload, Callee] = {
    aten.ctc_loss.IntList: _ctc_loss,
    # For torch 2.11; later versions do not check fakes.
    **{op: _with_deferred_checks(op) for op in _QUANTILES},
}
"""Composite ops whose only definition, in C++, does not work with fake tensors."""
