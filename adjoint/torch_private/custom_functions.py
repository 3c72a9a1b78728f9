"""How Dynamo traces the backward of an `autograd.Function` for our backend."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import fx
from torch._dynamo import exc
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import higher_order_ops
from torch._dynamo.variables.base import VariableTracker
from torch._functorch.autograd_function import autograd_function_apply
from torch.autograd.function import once_differentiable

# Dynamo's functions that trace a subgraph; which of them a backward goes through depends on torch.
_TRACERS = ("speculate_subgraph_with_auto_output_flattening", "speculate_subgraph")

# The recursion depth to which backwards that apply their own function are traced; the derivative of
# the innermost is an error.
MAX_NESTED_BACKWARDS = 2

_ONCE = "adjoint_once_differentiable"


def _nothing(ctx: object) -> None: ...


# A backward wrapped like this one may not be differentiated.
_ONCE_DIFFERENTIABLE = once_differentiable(_nothing)


def is_once_differentiable(backward: object) -> bool:
    """Whether a backward is marked by `once_differentiable`."""
    return getattr(backward, "__code__", None) is _ONCE_DIFFERENTIABLE.__code__


def was_once_differentiable(backward: fx.GraphModule) -> bool:
    """Whether the backward that Dynamo traced into this graph was `once_differentiable`."""
    return bool(backward.meta.get(_ONCE))


class _Tracing(threading.local):
    """What this thread traces."""

    is_ours = False
    """Whether the frame is compiled for our backend."""
    differentiably = False
    """Whether it traces a custom function whose backward may be differentiated."""
    backwards: tuple[object, ...] = ()
    """The backwards that are being traced, each applied in the one before."""


_TRACING = _Tracing()


@contextlib.contextmanager
def differentiable_backwards() -> Iterator[None]:
    """Let this thread's Dynamo trace a backward as autograd runs it with `create_graph=True`.

    Dynamo traces it without grad mode.  What a second derivative depends on is lost then: regions
    without grad, functions that the backward applies, whether it may be differentiated at all.
    """
    _install()
    before, _TRACING.is_ours = _TRACING.is_ours, True
    try:
        yield
    finally:
        _TRACING.is_ours = before


@functools.cache
def _install() -> None:
    variable = higher_order_ops.AutogradFunctionApplyVariable
    vars(higher_order_ops).update(
        {
            name: _with_grad(vars(higher_order_ops)[name])
            for name in _TRACERS
            if name in vars(higher_order_ops)
        }
    )
    call_function = variable.call_function

    @functools.wraps(call_function)
    def call(
        self: higher_order_ops.AutogradFunctionApplyVariable,
        tx: InstructionTranslatorBase,
        args: list[VariableTracker],
        kwargs: dict[str, VariableTracker],
    ) -> VariableTracker:
        if not _TRACING.is_ours:
            return call_function(self, tx, args, kwargs)
        around = _TRACING.backwards
        is_deep = around.count(self.bwd_fn) == MAX_NESTED_BACKWARDS
        is_once = is_deep or is_once_differentiable(self.bwd_fn)
        before, _TRACING.differentiably = _TRACING.differentiably, not is_once
        _TRACING.backwards = (*around, self.bwd_fn)
        try:
            result = call_function(self, tx, args, kwargs)
        finally:
            _TRACING.differentiably, _TRACING.backwards = before, around
        if is_once:
            graph: fx.Graph = tx.output.current_tracer.graph
            *_, node = graph.find_nodes(op="call_function", target=autograd_function_apply)
            tx.output.nn_modules[str(node.args[1])].meta[_ONCE] = True
        return result

    variable.call_function = call  # type: ignore[method-assign]


def _with_grad(trace: Callable[..., object]) -> Callable[..., object]:
    """`trace`, with grad mode and cotangents that require grad where it would trace a backward."""

    @functools.wraps(trace)
    def traced(
        tx: InstructionTranslatorBase,
        function: object,
        args: Sequence[VariableTracker],
        *rest: object,
        **options: object,
    ) -> object:
        # Dynamo traces only backwards without grad mode; a forward sets the mode itself.
        if not _TRACING.differentiably or options.get("enable_grad") is not False:
            return trace(tx, function, args, *rest, **options)
        nodes = [each.as_proxy().node for each in args if each.is_tensor()]
        before = [node.meta["example_value"] for node in nodes]
        with tx.output.fake_mode, torch.enable_grad():
            for node, value in zip(nodes, before, strict=True):
                if value.is_floating_point() or value.is_complex():
                    node.meta["example_value"] = value.detach().requires_grad_()
        try:
            return trace(tx, function, args, *rest, **{**options, "enable_grad": True})
        except SyntaxError as failure:
            # To report a graph break, Dynamo writes the graph as Python, which an empty one is not.
            if isinstance(failure.__context__, exc.TorchDynamoException):
                raise failure.__context__ from None
            raise
        finally:
            for node, value in zip(nodes, before, strict=True):
                node.meta["example_value"] = value

    return traced
