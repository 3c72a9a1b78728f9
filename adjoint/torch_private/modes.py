"""Dispatch and function modes, autograd's state, and patches of torch that apply under a mode."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
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
    "apply_node",
    "are_ops_observed",
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
    "set_grad_enabled",
    "set_version",
    "share_version_counter",
    "transform_requires_grad",
    "without_autocast",
    "without_dispatch_modes",
    "without_observers",
    "without_torch_function",
    "zero_cotangent",
]

# Pack and unpack hooks of saved tensors.
Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

_AUTOCAST_DEVICES = ("cpu", "cuda")

# Higher-order operators whose `__call__` checks or runs operands before a mode sees the call.
_CALLED_ABOVE_MODES = (CondOp, AutogradFunctionApply, TagActivationCheckpoint)

# Our own copy of the setting, which torch does not expose.
_MATERIALIZES = "_adjoint_materializes_grads"

# Imported by name, because the package's attribute is the operator, not the module.
_nested_regions = importlib.import_module("torch._higher_order_ops.invoke_subgraph")


def is_traceable_wrapper_subclass(tensor: Any) -> bool:
    """A tensor subclass that wraps other tensors and implements `__tensor_flatten__`."""
    return _python_dispatch.is_traceable_wrapper_subclass(tensor)


@contextlib.contextmanager
def preserving_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Run a mutating op without increasing the version counters of `tensors` again."""
    versions = [(each, each._version) for each in tensors if not each.is_inference()]
    yield
    for tensor, version in versions:
        if tensor._version != version:
            set_version(tensor, version)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Run ops as inside autograd's own kernels: no history is recorded."""
    return torch._C._AutoDispatchBelowAutograd()


def above_autograd() -> contextlib.AbstractContextManager[Any]:
    """Undo `below_autograd`: autograd may have to regenerate the `grad_fn` of a view."""
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
    """A tensor wrapped by a level of a `torch.func` transform."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(
        value
    )


def innermost(value: Any) -> Any:
    """The tensor below all `torch.func` wrappers of `value`."""
    while is_functorch_wrapper(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def has_tangent(values: Sequence[Any]) -> bool:
    """Some value is a dual tensor of torch's forward mode."""
    if forward_ad._current_level < 0:
        return False
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def transform_requires_grad() -> bool:
    """A `torch.func` transform is calling `requires_grad_` on its own tensors."""
    return bool(torch._C._functorch.get_inplace_requires_grad_allowed())


def forward_mode_is_enabled() -> bool:
    """Torch's forward mode computes tangents of ops that run now."""
    return bool(forward_ad._is_fwd_grad_enabled())


def are_ops_observed() -> bool:
    """A `torch.func` transform, forward mode or a dispatch mode has to see each op."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
        or forward_ad._current_level >= 0
    )


# `torch.no_grad` and `torch.enable_grad` without the overhead of a context manager.
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled


def functorch_is_active() -> bool:
    """A `torch.func` transform or a batched backward is running."""
    return torch._C._are_functorch_transforms_active()


def outside_functorch() -> contextlib.AbstractContextManager[Sequence[Any]]:
    """Leave all levels of `torch.func` for a while; the context's value is their stack."""
    return temporarily_clear_interpreter_stack()


def dispatch_modes() -> list[Any]:
    """The active dispatch modes, innermost last."""
    return list(_python_dispatch._get_current_dispatch_mode_stack())


def without_dispatch_modes() -> contextlib.AbstractContextManager[Any]:
    """Run without the active dispatch modes."""
    return _python_dispatch._disable_current_modes()


def without_torch_function() -> contextlib.AbstractContextManager[Any]:
    """Run without `__torch_function__` of modes and tensor subclasses."""
    return torch._C.DisableTorchFunction()


def default_devices() -> tuple[torch.device, ...]:
    """The devices of active `torch.device` contexts, innermost last."""
    return tuple(each.device for each in _function_modes() if isinstance(each, DeviceContext))


def has_torch_function_mode() -> bool:
    """A `TorchFunctionMode` other than a device context is active."""
    return not all(isinstance(each, DeviceContext) for each in _function_modes())


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def saved_tensor_hooks() -> Hooks | None:
    """The innermost default hooks for saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of `tensor` and of all tensors that share it."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def share_version_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """The two tensors have one version counter.  Found out by changing it."""
    if one.is_inference() or other.is_inference():
        return one.is_inference() == other.is_inference()
    before = (one._version, other._version)
    set_version(one, max(before) + 1)
    shared = other._version == one._version
    set_version(one, before[0])
    return shared


def is_autocast_enabled() -> bool:
    """Autocast is enabled for some device type."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Run with autocast off: captured graphs contain its casts as ops."""
    if not is_autocast_enabled():
        yield
        return
    with contextlib.ExitStack() as stack:
        for device in _AUTOCAST_DEVICES:
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def control_flow_calls_its_operator(mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, let `torch.cond` and others call their operator instead of `torch.compile`.

    They do so if `torch.compiler.is_dynamo_compiling()`, which is patched here.  A nested compile
    region, which has no operator in that case, is called as in eager torch.
    """
    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.compiler, "is_dynamo_compiling", lambda: True),
        (_nested_regions, "invoke_subgraph_placeholder", _call),
        *((operator, "__call__", HigherOrderOperator.__call__) for operator in _CALLED_ABOVE_MODES),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, function in changes:
            stack.enter_context(replaced(owner, name, function, mode))
        yield


@contextlib.contextmanager
def without_observers() -> Iterator[None]:
    """Run without the caller's dispatch modes, saved-tensor hooks and anomaly detection."""
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
    """Run our own programs on fakes, unaffected by the caller's modes, hooks and autocast."""
    with without_observers(), without_autocast(), _without_function_modes():
        yield


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    """Pop all function modes.  `__torch_function__` of fx proxies still works, unlike above."""
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
    """Under `mode`, route `Function.apply(*args)` to `apply(original_apply, Function, *args)`."""
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


# The names that `torch.library` gives to the autograd functions of custom ops begin so.
_OF_CUSTOM_OPS = "GeneratedBackwardFor_"


def is_of_custom_op(function: type) -> bool:
    """`torch.library` made this `autograd.Function` for a custom op."""
    return function.__name__.startswith(_OF_CUSTOM_OPS)


@contextlib.contextmanager
def custom_ops_applied_by(apply: Callable[..., Any], mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, route the autograd function of a custom op to `apply(run)`.

    Functions of ops with lists of tensors keep the `apply` of `autograd.Function` from when they
    were made, so that one is not patched; all of them end in `_SingleLevelFunction.apply`.
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
    """`ctx.set_materialize_grads` of a function routed as above: zeros for missing cotangents."""
    return bool(getattr(context, _MATERIALIZES, True))


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, function: Callable[..., Any], mode: TorchDispatchMode
) -> Iterator[None]:
    """Replace the function or method `name` of `owner` wherever `mode` is active.

    Other threads, which are not under the mode, call the original.  Callers hold a lock, so that
    two threads cannot restore each other's replacement.
    """
    before = vars(owner)[name]
    is_classmethod = isinstance(before, classmethod)
    original = before.__func__ if is_classmethod else before

    def either(*args: Any, **kwargs: Any) -> Any:
        return (function if _is_under(mode) else original)(*args, **kwargs)

    setattr(owner, name, classmethod(either) if is_classmethod else either)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _is_under(mode: TorchDispatchMode) -> bool:
    return any(each is mode for each in dispatch_modes())


def has_dispatch_mode() -> bool:
    """A dispatch mode is active, to which kernels outside of torch's dispatcher are invisible."""
    return torch._C._len_torch_dispatch_stack() > 0


# Runs for which gradients are assumed to be needed, as they were the last time.
MAX_RUNS_UNASKED = 16

# Kinds of runs that are remembered.
MAX_KINDS = 64


class ReachedNodes:
    """Which successors of an autograd node the current backward will execute or return.

    To ask takes microseconds, and for a leaf whose gradient `autograd.grad` returns torch answers
    by raising an error, which is slower.  So where all were reached, and of leaves that were
    returned, the same is assumed of the next runs of that kind: that may only compute too much.
    All other nodes are asked about in each run.
    """

    def __init__(self) -> None:
        self._assumed: dict[Hashable, _Assumed] = {}

    def that_run(self, nodes: Sequence[Any], kind: Hashable) -> tuple[int, ...]:
        """Their indices; may include some whose gradient is not needed in this run.

        `kind`: what tells runs of this node apart that may be for different gradients.
        """
        assumed = self._assumed.get(kind)
        if assumed is None or assumed.runs == MAX_RUNS_UNASKED:
            answers = [_will_run(node) for node in nodes]
            is_all = all(answers)
            known = [n for n, answer in enumerate(answers) if is_all or answer is _RETURNED]
            if len(self._assumed) > MAX_KINDS:
                self._assumed.clear()
            self._assumed[kind] = _Assumed(frozenset(known), is_all, 1)
            return tuple([n for n, answer in enumerate(answers) if answer])
        assumed.runs += 1
        if assumed.is_all:
            return tuple(range(len(nodes)))
        reached = assumed.reached
        return tuple([n for n, node in enumerate(nodes) if n in reached or _will_run(node)])


@dataclasses.dataclass
class _Assumed:
    """Nodes that are taken to be reached, for how many runs by now."""

    reached: frozenset[int]
    is_all: bool
    runs: int


_RETURNED = "returned"


def _will_run(node: Any) -> bool | str:
    """Whether autograd will execute `node`; `_RETURNED` if it returns the node's gradient."""
    if node is None:
        return True
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError as error:
        if "leaf node" not in str(error):
            raise
        return _RETURNED


def apply_node(function: type[torch.autograd.Function], *args: Any) -> Any:
    """`function.apply(*args)`, where no `torch.func` transform is active.

    Torch's own method looks for tensors of transforms that have ended, in Python.
    """
    return super(torch.autograd.Function, function).apply(*args)  # type: ignore[misc]


def zero_cotangent(node: Any, index: int) -> torch.Tensor:
    """A zero cotangent for output `index` of `node`."""
    like = node._input_metadata[index]
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)
