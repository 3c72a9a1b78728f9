"""The state of autograd: versions, saved-tensor hooks, forward mode, which nodes will run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import Node

from adjoint.open_types import AutogradContext, TorchValue, UserFunction

# Pack and unpack hooks of saved tensors.
Hooks: TypeAlias = tuple[UserFunction, UserFunction]


def below_autograd() -> contextlib.AbstractContextManager[object]:
    """Run ops as inside autograd's own kernels: no history is recorded."""
    return torch._C._AutoDispatchBelowAutograd()


def above_autograd() -> contextlib.AbstractContextManager[object]:
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


@contextlib.contextmanager
def preserving_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Run a mutating op without increasing the version counters of `tensors` again."""
    versions = [(each, each._version) for each in tensors if not each.is_inference()]
    yield
    for tensor, version in versions:
        if tensor._version != version:
            set_version(tensor, version)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of `tensor` and of all tensors that share it."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def share_version_counter(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share a version counter, tested by changing it for a moment."""
    if one.is_inference() or other.is_inference():
        return one.is_inference() == other.is_inference()
    before = (one._version, other._version)
    set_version(one, max(before) + 1)
    shared = other._version == one._version
    set_version(one, before[0])
    return shared


def saved_tensor_hooks() -> Hooks | None:
    """The innermost default hooks for saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def has_tangent(values: Sequence[object]) -> bool:
    """Whether some value is a dual tensor of torch's forward mode."""
    if forward_ad._current_level < 0:
        return False
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)


def forward_mode_is_enabled() -> bool:
    """Whether Torch's forward mode computes tangents of ops that run now."""
    return bool(forward_ad._is_fwd_grad_enabled())


# `torch.no_grad` and `torch.enable_grad` without the overhead of a context manager.
set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled


# Runs that assume the last answers, before torch is asked again.
MAX_RUNS_UNASKED = 16


# Kinds of runs that are remembered.
MAX_KINDS = 64


class ReachedNodes:
    """Which successors of an autograd node the current backward will execute or return.

    Asking torch takes microseconds, and longer for a leaf whose gradient `autograd.grad` returns:
    there torch raises an error.  So if all successors were reached, and for leaves whose gradients
    were returned, the next runs of that kind assume the same without asking.  A wrong assumption
    only computes gradients that are not needed.  Other nodes are asked about in each run.
    """

    def __init__(self) -> None:
        self._assumed: dict[Hashable, _Assumed] = {}

    def that_run(self, node: Node, kind: Hashable) -> tuple[int, ...]:
        """Indices of the successors that will run; may include some that this run does not need.

        `kind`: a key that separates runs of this node that may need different gradients.
        """
        assumed = self._assumed.get(kind)
        if assumed is None or assumed.runs == MAX_RUNS_UNASKED:
            answers = [_will_run(each) for each, _ in node.next_functions]
            found = tuple([n for n, answer in enumerate(answers) if answer])
            is_all = len(found) == len(answers)
            known = [n for n, answer in enumerate(answers) if answer is _RETURNED]
            if len(self._assumed) > MAX_KINDS:
                self._assumed.clear()
            self._assumed[kind] = _Assumed(frozenset(known), found if is_all else None, 1)
            return found
        assumed.runs += 1
        if assumed.all is not None:
            return assumed.all
        reached = assumed.reached
        # Torch builds new objects for the successors at each access.
        following = node.next_functions
        try:
            return tuple(
                [
                    n
                    for n, (each, _) in enumerate(following)
                    if n in reached or each is None or _will_execute(each)
                ]
            )
        except RuntimeError:
            # A leaf whose gradient is returned now, and was not before; or another error.
            answers = [n in reached or _will_run(each) for n, (each, _) in enumerate(following)]
            return tuple([n for n, answer in enumerate(answers) if answer])


@dataclasses.dataclass
class _Assumed:
    """Nodes assumed to be reached, and the number of runs that have assumed it."""

    reached: frozenset[int]
    all: tuple[int, ...] | None
    """All nodes, if they are assumed to be reached."""
    runs: int


_RETURNED = "returned"

_will_execute: Callable[[Node], bool] = torch._C._will_engine_execute_node


def _will_run(node: Node | None) -> bool | str:
    """Whether autograd will execute `node`; `_RETURNED` if it returns the node's gradient."""
    if node is None:
        return True
    try:
        return _will_execute(node)
    except RuntimeError as error:
        if "leaf node" not in str(error):
            raise
        return _RETURNED


# Older versions of torch keep saved tensors until the backward has returned.
CAN_CLEAR_SAVED = hasattr(torch._C._FunctionBase, "maybe_clear_saved_tensors")


def applied(function: type[torch.autograd.Function], *args: object) -> TorchValue:
    """`function.apply(*args)`."""
    return function.apply(*args)


def applying(function: type[torch.autograd.Function]) -> Callable[..., TorchValue]:
    """`function.apply`, for where no `torch.func` transform is active.

    Torch's own method looks for tensors of transforms that have ended, in Python.
    """
    return super(torch.autograd.Function, function).apply  # type: ignore[misc, no-any-return]


def run_backward_by(
    function: type[torch.autograd.Function], backward: Callable[..., object]
) -> None:
    """Let autograd call `backward` for the nodes of `function`.

    Torch's own method looks for the static method `backward` in every run, in Python.
    """
    function._backward_cls.apply = backward  # type: ignore[attr-defined]


def zero_cotangent(node: AutogradContext, index: int) -> torch.Tensor:
    """A zero cotangent for output `index` of `node`."""
    like = node._input_metadata[index]
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def leaves_of_history(results: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The leaf tensors that require grad and that these results were computed from."""
    found: list[torch.Tensor] = []
    work = [each.grad_fn for each in results]
    visited: set[Node] = set()
    while work:
        node = work.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        work += [each for each, _ in node.next_functions]
    return found
