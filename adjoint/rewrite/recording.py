"""The operators that a torch function calls on fake tensors.

A write to a tensor that the function has made, as in `relu(x + y, inplace=True)`, is recorded as a
new value of it, because graphs have no operators that write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from adjoint.failing import call_user_code
from adjoint.open_types import Callee, OpArgument, OpArguments, OpKeywords, TorchValue
from adjoint.torch_private import trees
from adjoint.torch_private.fake import FakeTensor, fake_call, mode_of
from adjoint.torch_private.modes import TorchDispatchMode, enable_python_dispatcher, isolated
from adjoint.torch_private.operators import OpOverload, written_arguments
from adjoint.trace.mutation import functional_variant


class Untraceable(Exception):
    """A function cannot be a pattern or a replacement, and why."""


@dataclass(frozen=True)
class Step:
    """One operator that a function called."""

    op: OpOverload
    args: OpArguments
    kwargs: OpKeywords
    result: TorchValue


# The argument by which an operator is told to return what only its derivative reads.
_FOR_DERIVATIVE = "compute_log_sumexp"


class Recorder(TorchDispatchMode):
    """Records the operators that a function calls on fake tensors.

    `differentiated`: the calls are to be differentiated.  Torch tells fused attention so where an
    operand requires grad, which the fake values of a graph do not.
    """

    supports_higher_order_operators = True  # They come to `__torch_dispatch__`, to be refused.

    def __init__(self, differentiated: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.differentiated = differentiated
        self.steps: list[Step] = []
        # Tensors by id: results of calls, arguments of calls that are no results, the newest value
        # of what was written to, and what shares its memory and is not known anew.
        self._made: dict[int, torch.Tensor] = {}
        self._given: dict[int, torch.Tensor] = {}
        self._written: dict[int, torch.Tensor] = {}
        self._stale: dict[int, torch.Tensor] = {}

    def current(self, tree: object) -> OpArgument:
        """What the function passes or returns, with the newest values of what it wrote to."""
        if any(id(leaf) in self._stale for leaf in trees.leaves(tree)):
            raise Untraceable("it reads a tensor after a write to another one with its memory")
        return trees.map_leaves(lambda leaf: self._written.get(id(leaf), leaf), tree)

    def __torch_dispatch__(
        self, op: Callee, types: object, args: OpArguments = (), kwargs: OpKeywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not isinstance(op, OpOverload):
            raise Untraceable(f"it calls the higher-order operator {op}")
        values, settings = self.current((args, kwargs))
        if not op._schema.is_mutable:
            return self._record(op, values, settings)
        variant = functional_variant(op)
        is_made = bool(args) and id(args[0]) in self._made
        if variant is None or variant.dropped or written_arguments(op) != ("self",) or not is_made:
            raise Untraceable(f"it calls {op}, which writes to its argument")
        return self._write(op, variant.op, args[0], values, settings)

    def _record(self, op: OpOverload, args: OpArguments, kwargs: OpKeywords) -> TorchValue:
        for leaf in trees.leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor):
                raise Untraceable("it uses a tensor that is not an argument")
        if self.differentiated:
            args, kwargs = _keeping_what_derivatives_read(op, args, kwargs)
        # An operator that refuses its arguments is the fault of the function, not ours.
        result = call_user_code(fake_call, op, args, kwargs)
        # Queries of sizes return numbers, which are arguments of later calls.
        if _tensors(result):
            self.steps.append(Step(op, tuple(args), dict(kwargs), result))
            for leaf in _tensors((args, kwargs)):
                if id(leaf) not in self._made:
                    self._given[id(leaf)] = leaf
            self._made.update((id(leaf), leaf) for leaf in _tensors(result))
        return result

    def _write(
        self,
        op: OpOverload,
        pure: OpOverload,
        target: torch.Tensor,
        args: OpArguments,
        kwargs: OpKeywords,
    ) -> torch.Tensor:
        """A call of `op` that writes to `target`, as one of `pure` that computes its new value."""
        before = args[0]
        if target.requires_grad and not torch.is_grad_enabled():
            raise Untraceable(f"it calls {op} on a tensor that requires grad, without its history")
        memories = {_memory(target), _memory(before)}
        if any(_memory(each) in memories for each in self._given.values()):
            raise Untraceable(f"it calls {op}, which writes to its argument")
        sharing = {key: each for key, each in self._made.items() if _memory(each) in memories}
        value = self._record(pure, args, kwargs)
        if value.dtype != before.dtype:
            value = self._record(torch.ops.aten._to_copy.default, (value,), {"dtype": before.dtype})
        self._stale.update(sharing)
        self._stale.pop(id(target))
        self._written[id(target)] = value
        return target


def _keeping_what_derivatives_read(
    op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments of a call that returns what its derivative reads."""
    for place, argument in enumerate(op._schema.arguments):
        if argument.name == _FOR_DERIVATIVE:
            if place < len(args):
                return (*args[:place], True, *args[place + 1 :]), kwargs
            return args, {**kwargs, _FOR_DERIVATIVE: True}
    return args, kwargs


def _memory(tensor: torch.Tensor) -> int:
    """Equal for tensors that share memory."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in trees.leaves(tree) if isinstance(leaf, torch.Tensor)]


def operators_of(function: Callable[..., object], values: Sequence[object]) -> list[OpOverload]:
    """The operators that a function calls on fake tensors like these."""
    mode = mode_of(values)
    assert mode is not None
    recorder = Recorder()
    with isolated(), mode, enable_python_dispatcher(), torch.no_grad(), recorder:
        function(*values)
    return [step.op for step in recorder.steps]


def recorded(
    function: Callable[..., object], values: Sequence[object]
) -> tuple[list[Step], object]:
    """The calls of a function, and what it returns."""
    recorder = Recorder()
    with recorder:
        results = function(*values)
    return recorder.steps, recorder.current(results)
