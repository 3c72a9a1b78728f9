"""Dispatch modes: seeing every op that torch runs, and the state it runs under."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch.autograd_function import AutogradFunctionApply
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._higher_order_ops.cond import CondOp
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch._ops import HigherOrderOperator
from torch.autograd import forward_ad
from torch.autograd.function import FunctionCtx, _SingleLevelFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "Hooks",
    "ReachedNodes",
    "TorchDispatchMode",
    "TorchFunctionMode",
    "above_autograd",
    "below_autograd",
    "control_flow_calls_its_operator",
    "custom_functions_applied_by",
    "custom_ops_applied_by",
    "default_devices",
    "dispatch_modes",
    "enable_python_dispatcher",
    "forward_mode_is_enabled",
    "functorch_is_active",
    "has_tangent",
    "has_torch_function_mode",
    "innermost",
    "is_autocast_enabled",
    "is_functorch_wrapper",
    "is_traceable_wrapper_subclass",
    "isolated",
    "materializes_grads",
    "outside_functorch",
    "preserving_versions",
    "replaced",
    "saved_tensor_hooks",
    "set_version",
    "share_version_counter",
    "transform_requires_grad",
    "without_autocast",
    "without_dispatch_modes",
    "without_observers",
    "without_torch_function",
    "zero_cotangent",
]

# Pack and unpack.
Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

_AUTOCAST_DEVICES = ("cpu", "cuda")

# Operators that check or run their operands before a mode can see the call.
_ACTING_THEMSELVES = (CondOp, AutogradFunctionApply, TagActivationCheckpoint)

# Torch does not tell what it was told.
_MATERIALIZES = "_adjoint_materializes_grads"

# By name: the operator of the same name hides the module.
_nested_regions = importlib.import_module("torch._higher_order_ops.invoke_subgraph")


def is_traceable_wrapper_subclass(tensor: Any) -> bool:
    """A tensor that holds others, and says which (`__tensor_flatten__`)."""
    return _python_dispatch.is_traceable_wrapper_subclass(tensor)


@contextlib.contextmanager
def preserving_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Run a mutating op whose writes to `tensors` are counted above, and must not be again."""
    versions = [(each, each._version) for each in tensors if not each.is_inference()]
    yield
    for tensor, version in versions:
        if tensor._version != version:
            set_version(tensor, version)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Run ops as autograd's own kernels do: no history is recorded."""
    return torch._C._AutoDispatchBelowAutograd()


def above_autograd() -> contextlib.AbstractContextManager[Any]:
    """Undo `below_autograd`, to ask a view for its history: autograd may derive it anew."""
    exclude = torch._C._dispatch_tls_local_exclude_set()
    for name in (
        "AutogradFunctionality",
        "AutogradOther",
        "AutogradNestedTensor",
        "ADInplaceOrView",
    ):
        exclude = exclude.remove(getattr(torch._C.DispatchKey, name))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), exclude)


def is_functorch_wrapper(value: Any) -> bool:
    """A tensor as `torch.func` transforms see it, one of their levels around another tensor."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(
        value
    )


def innermost(value: Any) -> Any:
    """The tensor that all levels of `torch.func` around `value` are around."""
    while is_functorch_wrapper(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def has_tangent(values: Sequence[Any]) -> bool:
    """Some of `values` is a dual number of torch's forward mode."""
    if forward_ad._current_level < 0:
        return False
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def transform_requires_grad() -> bool:
    """A transform of `torch.func` is about to make leaves of its own tensors."""
    return bool(torch._C._functorch.get_inplace_requires_grad_allowed())


def forward_mode_is_enabled() -> bool:
    """Torch's forward mode would give tangents to what runs now."""
    return bool(forward_ad._is_fwd_grad_enabled())


def functorch_is_active() -> bool:
    """A transform of `torch.func` is under way, or autograd runs a backward for a batch."""
    return torch._C._are_functorch_transforms_active()


def outside_functorch() -> contextlib.AbstractContextManager[Sequence[Any]]:
    """Leave all levels of `torch.func` transforms for a while; which they are."""
    return temporarily_clear_interpreter_stack()


def dispatch_modes() -> list[Any]:
    """The dispatch modes that are active, the innermost last."""
    return list(_python_dispatch._get_current_dispatch_mode_stack())


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """Run ops on real tensors, whatever watches or fakes the program's."""
    return _python_dispatch._disable_current_modes()


def without_torch_function() -> contextlib.AbstractContextManager[Any]:
    """Run without `__torch_function__`, of modes and of tensor subclasses."""
    return torch._C.DisableTorchFunction()


def default_devices() -> tuple[torch.device, ...]:
    """Where contexts around say that tensors are made, the innermost last."""
    return tuple(each.device for each in _function_modes() if isinstance(each, DeviceContext))


def has_torch_function_mode() -> bool:
    """A mode around sees calls into torch before anything else, and may answer as it likes."""
    return not all(isinstance(each, DeviceContext) for each in _function_modes())


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def saved_tensor_hooks() -> Hooks | None:
    """The innermost pack and unpack hooks that autograd would call now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of `tensor`, and so of all that share it."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def share_version_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """A write to one of them counts for both.  Asked by trying."""
    if one.is_inference() or other.is_inference():
        return one.is_inference() == other.is_inference()
    before = (one._version, other._version)
    set_version(one, max(before) + 1)
    shared = other._version == one._version
    set_version(one, before[0])
    return shared


def is_autocast_enabled() -> bool:
    """On some device."""
    return any(map(torch.is_autocast_enabled, _AUTOCAST_DEVICES))


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Run with autocast off: captured graphs carry their casts as ops."""
    if not is_autocast_enabled():
        yield
        return
    with contextlib.ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def control_flow_calls_its_operator(mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, let `torch.cond` and its kin call their operator, not compile themselves.

    They do so when they believe Dynamo is tracing them, which is the question they are asked here.
    A nested compile region, which has no operator of its own then, is called as in eager torch.
    """
    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.compiler, "is_dynamo_compiling", lambda: True),
        (_nested_regions, "invoke_subgraph_placeholder", _call),
        *((operator, "__call__", HigherOrderOperator.__call__) for operator in _ACTING_THEMSELVES),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in changes:
            stack.enter_context(replaced(owner, name, function, mode))
        yield


@contextlib.contextmanager
def without_observers() -> Iterator[None]:
    """Run on fakes as if nobody around was told of ops and saved tensors, or had them checked."""
    hooks: list[Hooks] = []
    while (top := saved_tensor_hooks()) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        hooks.append(top)
    try:
        with without_dispatch_modes(), torch.autograd.set_detect_anomaly(False):
            yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Run on fakes what is not the user's program: nothing around it watches or changes ops."""
    with without_observers(), without_autocast(), _without_function_modes():
        yield


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    """Without modes; proxies, by which sizes are computed, still answer for themselves."""
    modes: list[Any] = []
    while torch._C._len_torch_function_stack():
        modes.append(torch._C._pop_torch_function_stack())
    try:
        yield
    finally:
        for each in reversed(modes):
            torch._C._push_on_torch_function_stack(each)


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@contextlib.contextmanager
def custom_functions_applied_by(
    apply: Callable[..., Any], mode: TorchDispatchMode
) -> Iterator[None]:
    """Under `mode`, route `SomeFunction.apply(*args)` to `apply(SomeFunction, *args)`.

    `apply` receives the original as its first argument, to fall back on.
    """
    original = torch.autograd.Function.__dict__["apply"]
    set_materialize_grads = FunctionCtx.set_materialize_grads

    def routed(cls: type, *args: Any, **kwargs: Any) -> Any:
        own = original.__get__(None, cls)
        return apply(own, cls, *args, **kwargs)

    def noted(self: Any, value: bool) -> None:
        setattr(self, _MATERIALIZES, value)
        set_materialize_grads(self, value)

    with (
        replaced(torch.autograd.Function, "apply", routed, mode),
        replaced(FunctionCtx, "set_materialize_grads", noted, mode),
    ):
        yield


# How torch.library names the functions by which custom ops have their derivatives.
_OF_CUSTOM_OPS = "GeneratedBackwardFor_"


def is_of_custom_op(function: type) -> bool:
    """torch.library made this `autograd.Function`: a custom op is on its way below autograd."""
    return function.__name__.startswith(_OF_CUSTOM_OPS)


@contextlib.contextmanager
def custom_ops_applied_by(apply: Callable[..., Any], mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, route a custom op on its way below autograd to `apply(run)`.

    The functions that torch.library makes for ops with lists of tensors hold the `apply` of
    `autograd.Function` that was there when they were made.  Where that ends, all are met.
    """

    def routed(cls: type, *args: Any) -> Any:
        original = super(_SingleLevelFunction, cls).apply  # type: ignore[misc]
        return apply(lambda: original(*args)) if is_of_custom_op(cls) else original(*args)

    def inherited(cls: type, *args: Any) -> Any:
        return super(_SingleLevelFunction, cls).apply(*args)  # type: ignore[misc]

    setattr(_SingleLevelFunction, "apply", classmethod(inherited))  # noqa: B010
    try:
        with replaced(_SingleLevelFunction, "apply", routed, mode):
            yield
    finally:
        delattr(_SingleLevelFunction, "apply")


def materializes_grads(context: Any) -> bool:
    """The function with this context, applied as above, wants zeros for missing cotangents."""
    return bool(getattr(context, _MATERIALIZES, True))


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, function: Callable[..., Any], mode: TorchDispatchMode
) -> Iterator[None]:
    """Run with another function, or method, `name` of `owner`, where `mode` sees the ops.

    So it is nothing to other threads.  Those that replace the same hold a lock meanwhile, or one
    would put back what the other has put there.
    """
    before = vars(owner)[name]
    is_method_of_classes = isinstance(before, classmethod)
    original = before.__func__ if is_method_of_classes else before

    def either(*args: Any, **kwargs: Any) -> Any:
        return (function if _is_under(mode) else original)(*args, **kwargs)

    setattr(owner, name, classmethod(either) if is_method_of_classes else either)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _is_under(mode: TorchDispatchMode) -> bool:
    return any(each is mode for each in dispatch_modes())


def has_dispatch_mode() -> bool:
    """A dispatch mode sees every op: what runs without torch's ops would escape it."""
    return torch._C._len_torch_dispatch_stack() > 0


# More leaves than these are not asked about one by one.
_FEW = 4


class ReachedNodes:
    """Which of the nodes that follow one the run of autograd under way will come to.

    That of a leaf whose gradient autograd is to return is told by an error, which takes as long as
    a hundred answers.  Where there are many such leaves, and the first of them is one again, the
    others are taken to be so, too; all other nodes are asked about each time.
    """

    def __init__(self) -> None:
        self._returned: tuple[int, ...] = ()

    def that_run(self, nodes: Sequence[Any]) -> tuple[int, ...]:
        """Their places; at the worst, some are among them whose gradient nobody waits for."""
        taken = self._returned
        if taken and _will_run(nodes[taken[0]]) is not _RETURNED:
            taken = ()
        asked = [_RETURNED if n in taken else _will_run(node) for n, node in enumerate(nodes)]
        returned = tuple([n for n, answer in enumerate(asked) if answer is _RETURNED])
        self._returned = returned if len(returned) > _FEW else ()
        return tuple([n for n, answer in enumerate(asked) if answer])


_RETURNED = "returned"


def _will_run(node: Any) -> bool | str:
    """Whether autograd will come to `node`, or return what it would be given."""
    if node is None:
        return True
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError as error:
        if "leaf node" not in str(error):
            raise
        return _RETURNED


def zero_cotangent(node: Any, place: int) -> torch.Tensor:
    """Zeros like the cotangent that `node` takes at `place`."""
    like = node._input_metadata[place]
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
