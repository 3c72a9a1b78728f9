"""Fake tensors: tensors with metadata but without data."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterable, Sequence
from operator import attrgetter

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from adjoint.torch_private import missing_fakes as _missing_fakes  # noqa: F401
from adjoint.torch_private.corrected_fakes import fake_call
from adjoint.torch_private.operators import OpOverload

__all__ = [
    "DATA_DEPENDENT",
    "CorrectedFakes",
    "FakeTensor",
    "FakeTensorMode",
    "bound_cached_fakes",
    "detached_fake",
    "fake_call",
    "fake_like",
    "fake_mode_with",
    "fake_view",
    "make_fake",
    "mode_of",
    "new_fake_mode",
    "op_without_fake",
    "reads_missing_data",
    "unset_fake_temporarily",
]

# Raised by torch where a program depends on values of tensors, which fakes do not have.
DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


# Torch caches what operators return for fakes, for all of a process and without a bound: with
# programs and sizes that are new, it would only grow, by about 2 kB for each entry.
MAX_CACHED_FAKES = 4096


def bound_cached_fakes() -> None:
    """Empty torch's cache of fake results if it is large."""
    if len(FakeTensorMode.cache) > MAX_CACHED_FAKES:
        FakeTensorMode.cache_clear()


class CorrectedFakes(TorchDispatchMode):
    """Calls ops below autograd by `fake_call`; a fake mode is to be active around it."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        op: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return fake_call(op, args, kwargs or {})


def reads_missing_data(error: Exception) -> bool:
    """Whether `error` was raised by C++ code that tried to read the data of a fake tensor."""
    return isinstance(error, RuntimeError) and "its data is not allocated yet" in str(error)


def op_without_fake(error: Exception) -> str | None:
    """The name of the op if `error` says that it has no fake implementation."""
    if isinstance(error, UnsupportedOperatorException):
        return str(error.func)
    found = re.search(r"no fake impl registered for <CustomOpDef\((.*?)\)>", str(error))
    return None if found is None else found[1].replace("::", ".")


def new_fake_mode() -> FakeTensorMode:
    """A fake mode that specializes on no size, and allows data-dependent sizes and numbers."""
    shape_env = ShapeEnv(
        allow_scalar_outputs=True,
        allow_dynamic_output_shape_ops=True,
        specialize_zero_one=False,
        duck_shape=False,
    )
    return fake_mode_with(shape_env)


def fake_mode_with(shape_env: ShapeEnv | None) -> FakeTensorMode:
    """A fake mode that refuses tensors of other modes."""
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False)
    # The mode would keep its creation stack, all frames included, as long as a program lives.
    mode._stack_trace = traceback.StackSummary()
    return mode


def make_fake(
    mode: FakeTensorMode, tensor: torch.Tensor, dynamic: bool | Sequence[bool], name: str
) -> torch.Tensor:
    """The fake of `tensor`, with the same aliasing, views, leaves and subclasses as the real one.

    `dynamic`: for each axis, or for all, whether its size is symbolic.
    """
    axes = [dynamic] * tensor.dim() if isinstance(dynamic, bool) else dynamic
    if not any(axes):
        return with_full_storage(mode.from_tensor(tensor, static_shapes=True), tensor)
    from torch._dynamo.source import ConstantSource

    sizes = [DimDynamic.DYNAMIC if each else DimDynamic.STATIC for each in axes]
    context: StatelessSymbolicContext[..., object] = StatelessSymbolicContext(
        dynamic_sizes=sizes, constraint_sizes=[None] * tensor.dim()
    )
    with contextlib.suppress(NotImplementedError):
        fake = mode.from_tensor(
            tensor, static_shapes=False, symbolic_context=context, source=ConstantSource(name)
        )
        return with_full_storage(fake, tensor)
    return with_full_storage(mode.from_tensor(tensor, static_shapes=True), tensor)


def fake_like(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The fake on `device` whose memory is that of a meta tensor.

    Ten times as fast as running an op in the mode.
    """
    made: torch.Tensor = FakeTensor(mode, meta, device)
    return made


def fake_view(
    mode: FakeTensorMode,
    fake: FakeTensor,
    window: tuple[Sequence[int], Sequence[int], int],
    device: torch.device,
) -> torch.Tensor:
    """A fake whose memory is that of another; `window`: its sizes, strides and offset."""
    with torch.no_grad(), in_kernel_invocation_manager(mode):
        meta = fake.as_strided(*window)
    return fake_like(mode, meta, device)


def detached_fake(fake: torch.Tensor) -> torch.Tensor | None:
    """`fake.detach()`, in a sixth of the time; None where only the dispatcher can make it.

    Modes do not see it.
    """
    if (
        type(fake) is not FakeTensor
        or fake.constant is not None
        or fake.layout is not torch.strided
        or fake.is_inference()
    ):
        return None
    mode = fake.fake_mode
    with torch.no_grad(), in_kernel_invocation_manager(mode):
        meta = fake.detach()
    return fake_like(mode, meta, fake.fake_device)


def with_full_storage(fake: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """`fake` with a storage as large as that of `tensor`; torch's only covers its elements."""
    if type(fake) is FakeTensor and storage_key(fake) is not None:
        storage, needed = fake.untyped_storage(), tensor.untyped_storage().nbytes()
        if isinstance(storage.nbytes(), int) and storage.nbytes() < needed:
            storage.resize_(needed)
    return fake


def fake_mode_of(graph_module: fx.GraphModule) -> FakeTensorMode:
    """The fake mode of the values of a graph's nodes; a new one if there are no tensors."""
    values = []
    for node in graph_module.graph.nodes:
        values = tree_leaves(node.meta.get("val"))
        # All tensors of a graph have the same mode.
        if any(isinstance(each, torch.Tensor) for each in values):
            break
    return mode_of(values) or new_fake_mode()


def mode_of(values: Iterable[object]) -> FakeTensorMode | None:
    """The mode of fake tensors, and of fakes inside subclasses.

    Torch's own function refuses fakes if another mode is active, such as one of the caller's.
    """
    for value in values:
        if isinstance(value, FakeTensor):
            return value.fake_mode
        if is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            found = mode_of(getattr(value, name) for name in names)
            if found is not None:
                return found
    return None


def forget_shapes() -> None:
    """Drop what torch remembers of shapes that may be gone.

    Its caches of symbolic expressions belong to a class, and so keep each `ShapeEnv` alive that
    they have an entry of, with the values of its symbols and the fakes it has seen.
    """
    for method in vars(ShapeEnv).values():
        clear = getattr(method, "cache_clear", None)
        if clear is not None:
            clear()
    bound_cached_fakes()


def storage_key(tensor: torch.Tensor) -> int | None:
    """The identity of the storage of `tensor`; None if it has none, as sparse tensors."""
    try:
        address: int = tensor.untyped_storage()._cdata
        return address
    except (NotImplementedError, RuntimeError):
        return None


def storage_keys(values: Iterable[object]) -> set[int | None]:
    """The identities of the storages of all tensors among `values`."""
    tensors = [each for each in values if isinstance(each, torch.Tensor)]
    try:
        return set(map(attrgetter("_cdata"), map(torch.Tensor.untyped_storage, tensors)))
    except (NotImplementedError, RuntimeError):
        return set(map(storage_key, tensors)) - {None}


def is_zero_tensor(zeros: torch.Tensor) -> bool:
    """Whether this is a ZeroTensor: returned by some autograd formulas, supported by few ops."""
    return bool(zeros._is_zerotensor())
