"""What Dynamo knows about the graph it hands over."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._C._dynamo import guards
from torch._dynamo import convert_frame, exc
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config as shape_config

from adjoint.torch_private.modes import as_if_alone

# Held by Dynamo while it compiles, and by us: what is traced, differentiated or lowered shares fake
# modes and changes parts of torch for a while.  With a lock of our own, two threads that take both
# in different orders would wait for each other.
COMPILING: threading.RLock = convert_frame.compile_lock

# Another number whenever the dictionary has been written to.
dict_version: Callable[[dict[Any, Any]], int] = guards.dict_version


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Differentiate and lower graphs: one thread at a time, whatever context asks for them."""
    with COMPILING, as_if_alone():
        yield


_FAILURES = (exc.TorchRuntimeError, exc.BackendCompilerFailed, exc.Unsupported, exc.UserError)

# Graph breaks, and what else Dynamo says to itself or to the user.
DynamoError = exc.TorchDynamoException


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
    parts = re.findall(r"_(?:modules|parameters|buffers)\['([^']*)'\]", source)
    # The module is `self` of its own forward; another one is known by the variable that holds it.
    root = re.findall(r"\['([^']*)'\]", source.partition("._")[0])
    return ".".join([*(name for name in root if name != "self"), *parts])


def differentiable_backward(backward: fx.GraphModule) -> fx.GraphModule:
    """The backward of a custom function without the `no_grad` that Dynamo puts around all of it."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(backward.graph, {}))
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    if len(calls) > 1 and [_sets_grad_to(node) for node in (calls[0], calls[-1])] == [False, True]:
        graph.erase_node(calls[0])
        graph.erase_node(calls[-1])
    return fx.GraphModule(backward, graph)


def _sets_grad_to(node: fx.Node) -> Any:
    return node.args[0] if node.target is torch._C._set_grad_enabled else None


# Of the options that a backend is given, and the code that is compiled, a context to do that in.
During: TypeAlias = Callable[[Mapping[str, Any], CodeType], contextlib.AbstractContextManager[None]]


def adapt_frames(backend_name: str, is_final: Callable[[Exception], bool], during: During) -> None:
    """For frames compiled by `backend_name`: sizes 0 and 1 and equal sizes are ordinary sizes, and
    errors of the backend reach the user as they are.

    Dynamo specialises on such sizes before a backend sees the graph, and has no setting for one
    backend.  A frame that needs the specialisation (a size of 1 that broadcasts) is compiled again
    with it, unless its error `is_final`.  All of this is done in the context `during`.
    """
    original = convert_frame._compile
    if getattr(original, "_adjoint", False):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs).arguments
        compiler = given.get("compiler_fn")
        if getattr(compiler, "compiler_name", None) != backend_name:
            return original(*args, **kwargs)
        with during(_options_of(compiler), given["code"]):
            return compile_twice(*args, **kwargs)

    def compile_twice(*args: Any, **kwargs: Any) -> Any:
        try:
            with general_shapes():
                return original(*args, **kwargs)
        except _FAILURES as failure:
            inner = getattr(failure, "inner_exception", None)
            if inner is not None and is_final(inner):
                raise inner from inner.__cause__
        # What fails for another reason than its shapes fails again, as it should.
        try:
            return original(*args, **kwargs)
        except exc.BackendCompilerFailed as failure:
            raise failure.inner_exception from failure.inner_exception.__cause__

    compile_frame._adjoint = True  # type: ignore[attr-defined]
    convert_frame._compile = compile_frame


def _options_of(compiler: Any) -> Mapping[str, Any]:
    """What the user gave `torch.compile` for the backend."""
    inner = getattr(compiler, "_torchdynamo_orig_backend", compiler)
    return (getattr(inner, "kwargs", None) or {}).get("options") or {}


def will_be_tried_again() -> bool:
    """A frame of Dynamo's is being compiled for general shapes, as `adapt_frames` has it first."""
    config: Any = shape_config
    return TracingContext.try_get() is not None and bool(config.backed_size_oblivious)


def general_shapes() -> contextlib.AbstractContextManager[None]:
    """A context in which symbolic sizes are not told apart by being 0, 1 or equal."""
    config: Any = shape_config
    manager: contextlib.AbstractContextManager[None] = config.patch(
        backed_size_oblivious=True, use_duck_shape=False
    )
    return manager
