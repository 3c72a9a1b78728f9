"""What Dynamo knows about the graph it hands over."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo import convert_frame, exc
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as shape_config


_FAILURES = (exc.TorchRuntimeError, exc.BackendCompilerFailed, exc.Unsupported, exc.UserError)


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


def adapt_frames(backend_name: str, unwrapped: type[Exception]) -> None:
    """For frames compiled by `backend_name`: sizes 0 and 1 and equal sizes are ordinary sizes, and
    errors of the type `unwrapped` reach the user as they are.

    Dynamo specialises on such sizes before a backend sees the graph, and has no setting for one
    backend.  A frame that needs the specialisation (a size of 1 that broadcasts) is compiled again
    with it.
    """
    original = convert_frame._compile
    if getattr(original, "_adjoint", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        compiler = signature.bind_partial(*args, **kwargs).arguments.get("compiler_fn")
        if getattr(compiler, "compiler_name", None) != backend_name:
            return original(*args, **kwargs)
        try:
            # What fails for another reason than its shapes fails again, as it should.
            with contextlib.suppress(*_FAILURES), general_shapes():
                return original(*args, **kwargs)
            return original(*args, **kwargs)
        except exc.BackendCompilerFailed as failure:
            if isinstance(failure.inner_exception, unwrapped):
                raise failure.inner_exception from None
            raise

    compile_frame._adjoint = True  # type: ignore[attr-defined]
    convert_frame._compile = compile_frame


def general_shapes() -> contextlib.AbstractContextManager[None]:
    """A context in which symbolic sizes are not told apart by being 0, 1 or equal."""
    manager: contextlib.AbstractContextManager[None] = shape_config.patch(
        backed_size_oblivious=True, use_duck_shape=False
    )
    return manager
