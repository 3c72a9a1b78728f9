"""What the tracer must see before autograd does: tensors from outside, custom functions, bodies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from adjoint.capture import control_flow, functions
from adjoint.capture.subclasses import is_made_of_fakes
from adjoint.capture.tracer import Tracer
from adjoint.torch_private import trees
from adjoint.torch_private.modes import TorchFunctionMode
from adjoint.torch_private.operators import HigherOrderOperator


class Front(TorchFunctionMode):
    """Sees each call into torch before anything has happened to its arguments.

    A real tensor that the program closes over is replaced here: were it to reach autograd, an
    in-place op would count a version, or record a history, on the user's own tensor.
    """

    def __init__(self, tracer: Tracer, adopt: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.tracer = tracer
        self.adopt = adopt

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = trees.map_leaves(self._ours, (args, kwargs or {}))
        if isinstance(function, HigherOrderOperator):
            with self:
                return control_flow.call(self.tracer, function, args, kwargs)
        return function(*args, **kwargs)

    def apply_custom_function(
        self, original: Callable[..., Any], function: type, *args: Any, **kwargs: Any
    ) -> Any:
        """`function.apply(*args)` of a custom autograd function."""
        args, kwargs = trees.map_leaves(self._ours, (args, kwargs))
        return functions.apply(self.tracer, original, function, args, kwargs)

    def _ours(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or self.tracer.scope.knows(leaf):
            return leaf
        return leaf if is_made_of_fakes(leaf) else self.adopt(leaf)
