"""Intercepting calls into torch above autograd: closed-over tensors, custom functions, bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch.autograd.graph import Node
from torch.nn.functional import scaled_dot_product_attention

from adjoint.capture import attention, control_flow, functions
from adjoint.capture.derivatives import passes_through
from adjoint.errors import CaptureError, OutsideHistoryError, OutsideLevelError
from adjoint.failing import call_user_code
from adjoint.open_types import Callee, OpArguments, OpKeywords
from adjoint.torch_private import trees
from adjoint.torch_private.functorch import innermost, is_functorch_wrapper, transform_requires_grad
from adjoint.torch_private.modes import TorchFunctionMode
from adjoint.torch_private.operators import HigherOrderOperator
from adjoint.trace.metadata_changes import change_history
from adjoint.trace.subclasses import is_made_of_fakes
from adjoint.trace.tracer import Tracer

# Change the autograd state of a tensor without dispatching an op.
_CHANGE_HISTORY = frozenset(
    {
        torch.Tensor.detach_,
        torch.detach_,
        torch.ops.aten.detach_,
        torch.ops.aten.detach_.default,
        torch.Tensor.requires_grad_,
        torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    }
)

# Refused by `torch.func` inside of functions that it transforms; and what to do instead.
_REFUSED_IN_TRANSFORMS = {
    torch.Tensor.requires_grad_: "call requires_grad_() outside of it, or use adjoint.grad inside",
    torch.Tensor.retain_grad: "use adjoint.grad or adjoint.vjp inside, or return the tensor",
    torch.Tensor.backward: "use adjoint.grad or adjoint.vjp, or call backward() outside of it",
}

# Pass the data of a tensor outside of torch.
_LEAVE_TORCH = frozenset(
    {
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.data_ptr,
        torch.Tensor.share_memory_,
    }
)


class CaptureFunctionMode(TorchFunctionMode):
    """Intercepts each call into torch before autograd sees its arguments.

    A real tensor that the program closes over is replaced by its fake here.  Were it to reach
    autograd, an in-place op would advance the version, or record a history, of the user's tensor.
    """

    def __init__(
        self,
        tracer: Tracer,
        adopt: Callable[[torch.Tensor], torch.Tensor],
        within_levels: bool = False,
        histories: Callable[[], Iterable[Node]] = tuple,
    ) -> None:
        """`within_levels`: the capture was started inside levels of `torch.func`, which it left.

        `histories`: the autograd nodes of the program's inputs.
        """
        super().__init__()
        self.histories = histories
        self.within_levels = within_levels
        self.tracer = tracer
        self.adopt = adopt

    def __torch_function__(
        self,
        function: Callee,
        types: object,
        args: OpArguments = (),
        kwargs: OpKeywords | None = None,
    ) -> object:
        args, kwargs = trees.map_leaves(self.traced, (args, kwargs or {}))
        if function in _LEAVE_TORCH:
            raise CaptureError(
                f"Tensor.{function.__name__}",
                "the tensor has no data while the program is captured",
                "use ops of torch, or keep this part outside the compiled function",
                self.tracer.emitter.source(),
            )
        if function in _REFUSED_IN_TRANSFORMS and self._is_transformed():
            raise CaptureError(
                f"a call of Tensor.{function.__name__}()",
                f"You are attempting to call Tensor.{function.__name__}() inside of a function "
                "being transformed; this is unsupported",
                _REFUSED_IN_TRANSFORMS[function],
                self.tracer.emitter.source(),
            )
        if function in _CHANGE_HISTORY:
            return change_history(
                self.tracer, args[0], partial(call_user_code, function, *args, **kwargs)
            )
        if kwargs.get("requires_grad") is True and not self._is_transformed():
            # `new_zeros(3, requires_grad=True)`: a leaf for the caller, if the program returns it.
            made = call_user_code(function, *args, **{**kwargs, "requires_grad": False})
            become = partial(call_user_code, torch.Tensor.requires_grad_, made)
            return change_history(self.tracer, made, become)
        if function is torch.Tensor.register_hook:
            # For derivatives that the program itself computes.
            call_user_code(torch.Tensor.register_hook, *args, **kwargs)
            with self:
                return functions.hook(self.tracer, *args, **kwargs)
        if function is torch.Tensor.register_post_accumulate_grad_hook:
            raise CaptureError(
                "Tensor.register_post_accumulate_grad_hook",
                "it acts when autograd runs, on a tensor that the caller has",
                "register it outside the compiled function",
                self.tracer.emitter.source(),
            )
        if function is torch.autograd.grad and self._leaves_the_program(*args, **kwargs):
            raise OutsideHistoryError(
                "torch.autograd.grad of a value with a history outside of the graph",
                "it was partly computed before the graph began, and that part would be missing",
                "undo torch._dynamo.allow_in_graph(torch.autograd.grad), or compile all of it",
                self.tracer.emitter.source(),
            )
        if function is scaled_dot_product_attention:
            return attention.attend(function, args, kwargs)
        if isinstance(function, HigherOrderOperator):
            with self:
                return control_flow.call(self.tracer, function, args, kwargs)
        return call_user_code(function, *args, **kwargs)

    def _leaves_the_program(
        self, outputs: object, inputs: object, *_: object, **__: object
    ) -> bool:
        return passes_through(outputs, inputs, self.histories())

    def _is_transformed(self) -> bool:
        """Whether a transform differentiates what runs now, and it is not the transform that
        calls."""
        return self.tracer.is_in_transform and not transform_requires_grad()

    def apply_custom_function(
        self, original: Callable[..., object], function: type, *args: object, **kwargs: object
    ) -> object:
        """`function.apply(*args)` of a custom autograd function."""
        args, kwargs = trees.map_leaves(self.traced, (args, kwargs))
        return functions.apply(self.tracer, original, function, args, kwargs)

    def traced(self, leaf: object) -> object:
        """`leaf`, or the fake that replaces it if it is a real tensor."""
        if not isinstance(leaf, torch.Tensor) or self.tracer.scope.knows(leaf):
            return leaf
        if self.within_levels and is_functorch_wrapper(leaf):
            self._refuse_from_outside(leaf)
        return leaf if is_made_of_fakes(leaf, self.tracer.fake_mode) else self.adopt(leaf)

    def _refuse_from_outside(self, wrapper: torch.Tensor) -> None:
        """Refuse a wrapper of a real tensor.  Levels are numbered, and those around the capture
        have the same numbers as those in it, so which of them the wrapper belongs to is not
        known."""
        if not is_made_of_fakes(innermost(wrapper), self.tracer.fake_mode):
            raise OutsideLevelError(
                "a tensor of a transform of torch.func around the capture",
                "the function closes over it, and a graph cannot",
                "pass it as an argument",
                self.tracer.emitter.source(),
            )
