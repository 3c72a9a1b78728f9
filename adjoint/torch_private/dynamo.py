"""What Dynamo knows about the graph it hands over."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode


def fresh_fakes(
    graph_module: fx.GraphModule, examples: Sequence[Any]
) -> tuple[FakeTensorMode | None, list[Any]]:
    """Fakes of `examples` with Dynamo's symbols, but none of the tensors that Dynamo itself used.

    Dynamo has run the program on its own fakes, which shows in them.  None if Dynamo is not
    compiling.
    """
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return None, []
    shape_env = context.fake_mode.shape_env
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    fakes: list[Any] = []
    for node, example in zip(placeholders, examples, strict=True):
        if not isinstance(example, torch.Tensor):
            traced = node.meta.get("example_value", example)
            fakes.append(traced if isinstance(traced, (torch.SymInt, torch.SymFloat)) else example)
            continue
        symbolic = context.tensor_to_context.get(example)
        source = getattr(symbolic, "tensor_source", None)
        fakes.append(
            mode.from_tensor(
                example,
                static_shapes=symbolic is None,
                symbolic_context=symbolic,
                source=source,
            )
        )
    return mode, fakes


def source_name(placeholder: fx.Node) -> str:
    """Where in the user's frame an input comes from, in Python spelling."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None) or getattr(placeholder, "_dynamo_source", None)
    name = getattr(source, "name", None)
    text = name() if callable(name) else name
    return str(text) if text else placeholder.name


def module_path(source: str) -> str | None:
    """The qualified name of a parameter or buffer, from where Dynamo found it."""
    if "_parameters[" not in source and "_buffers[" not in source:
        return None
    return ".".join(re.findall(r"_(?:modules|parameters|buffers)\['([^']*)'\]", source))


def keep_shapes_general(backend_name: str) -> None:
    """For frames compiled by `backend_name`: sizes 0 and 1 and equal sizes are ordinary sizes.

    Dynamo specialises on them before a backend sees the graph, and has no setting for one backend.
    """
    from torch._dynamo.output_graph import OutputGraph

    original = OutputGraph.__init__
    if getattr(original, "_adjoint", False):
        return

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        compiler = getattr(self, "compiler_fn", None)
        if getattr(compiler, "compiler_name", None) == backend_name:
            shape_env = self.tracing_context.fake_mode.shape_env
            shape_env.settings = dataclasses.replace(
                shape_env.settings, specialize_zero_one=False, duck_shape=False
            )

    patched._adjoint = True  # type: ignore[attr-defined]
    OutputGraph.__init__ = patched  # type: ignore[method-assign]
