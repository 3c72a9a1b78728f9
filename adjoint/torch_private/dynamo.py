"""Dynamo: how it compiles frames for our backend, why it recompiles them, and what it keeps."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._C._dynamo import guards
from torch._dynamo import bytecode_transformation, convert_frame, exc
from torch._dynamo import config as dynamo_config
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import utils as dynamo_utils
from torch._functorch.autograd_function import autograd_function_apply
from torch._guards import TracingContext
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from adjoint.torch_private.custom_functions import differentiable_backwards
from adjoint.torch_private.fake import forget_shapes
from adjoint.torch_private.logs import unlogged
from adjoint.torch_private.modes import isolated
from adjoint.torch_private.size_decisions import program_decides

# Dynamo's own lock.  Tracing, differentiation and lowering share fake modes and patch parts of
# torch, so they need one; a second lock could deadlock with Dynamo's if two threads took them in
# different orders.
COMPILING: threading.RLock = convert_frame.compile_lock

# A number that changes with every write to the dictionary.
dict_version: Callable[[dict[Any, Any]], int] = guards.dict_version


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Differentiate and lower graphs: in one thread at a time, isolated from the caller's modes."""
    with COMPILING:
        try:
            with isolated():
                yield
        finally:
            forget_shapes()


def graphs_compiled() -> int:
    """How many graphs Dynamo has given to backends."""
    count: int = dynamo_utils.counters["stats"]["unique_graphs"]
    return count


_FAILURES = (
    exc.TorchRuntimeError,
    exc.BackendCompilerFailed,
    exc.Unsupported,
    exc.UserError,
    exc.InternalTorchDynamoError,
)

# The base class of graph breaks and all other exceptions of Dynamo.
DynamoError = exc.TorchDynamoException


def in_eager(graph_module: fx.GraphModule) -> Callable[..., object]:
    """Dynamo's graph as an eager callable.

    Dynamo wraps the backward of a custom function in `no_grad`, with which second derivatives would
    silently be zero: it is removed.
    """
    for module in [each for each in graph_module.modules() if isinstance(each, fx.GraphModule)]:
        for node in module.graph.nodes:
            if node.target is autograd_function_apply:
                name = str(node.args[1].target)
                setattr(module, name, differentiable_backward(getattr(module, name)))
    return graph_module.forward


def differentiable_backward(backward: fx.GraphModule) -> fx.GraphModule:
    """The backward of a custom function without the `no_grad` that Dynamo puts around all of it."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(backward.graph, {}))
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    if len(calls) > 1 and [_sets_grad_to(node) for node in (calls[0], calls[-1])] == [False, True]:
        graph.erase_node(calls[0])
        graph.erase_node(calls[-1])
    return fx.GraphModule(backward, graph)


def _sets_grad_to(node: fx.Node) -> object:
    return node.args[0] if node.target is torch._C._set_grad_enabled else None


# Called with the backend's options and the code object: a context manager for its compilation.
During: TypeAlias = Callable[
    [Mapping[str, object], CodeType], contextlib.AbstractContextManager[None]
]


def adapt_frames(
    backend_name: str,
    is_final: Callable[[Exception], bool],
    leaves_graph: type[Exception],
    during: During,
) -> None:
    """Compile frames of the backend `backend_name` without specializing on sizes 0 and 1 and on
    equal sizes, and let errors of the backend reach the user unwrapped.

    Derivatives inside of a frame are part of its graph, unless the backend raises `leaves_graph`:
    the frame is then compiled again, and its graph ends before `torch.autograd.grad`.

    By default Dynamo specializes on these sizes before a backend sees the graph, and it has no
    setting per backend.  A frame that needs the specialization (a size of 1 that broadcasts) is
    compiled again with it, unless the error `is_final`.  Both attempts run in the context `during`.
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
        FRAME.code, FRAME.reasons = given["code"], []
        try:
            with during(_options_of(compiler), given["code"]), differentiable_backwards():
                try:
                    with derivatives_in_graphs():
                        return compile_twice(*args, **kwargs)
                except leaves_graph:
                    return compile_twice(*args, **kwargs)
        finally:
            FRAME.code, FRAME.reasons = None, []
            _forget_inputs()
            _forget_code()

    def compile_twice(*args: Any, **kwargs: Any) -> object:
        try:
            with general_shapes(), program_decides():
                return original(*args, **kwargs)
        except Exception as failure:
            # The formulas of torch's fakes assume specialized sizes, and fail by any error.
            if isinstance(failure, DynamoError) and not isinstance(failure, _FAILURES):
                raise
            inner = getattr(failure, "inner_exception", None)
            if inner is not None and is_final(inner):
                raise inner from inner.__cause__
        # A failure that is not about shapes is raised again by this attempt.
        try:
            return original(*args, **kwargs)
        except exc.BackendCompilerFailed as failure:
            inner = failure.inner_exception
            if isinstance(inner, exc.TorchDynamoException):
                raise  # Unwrapped, Dynamo would treat it as its own and fall back to eager.
            raise inner from inner.__cause__

    compile_frame._adjoint = True  # type: ignore[attr-defined]
    convert_frame._compile = compile_frame
    # Without it, reasons are not known.
    find_reasons = getattr(convert_frame, "get_and_maybe_log_recompilation_reasons", None)
    if find_reasons is None:
        return

    @functools.wraps(find_reasons)
    def noted_reasons(*args: object, **kwargs: object) -> object:
        FRAME.reasons = reasons = find_reasons(*args, **kwargs)
        return reasons

    vars(convert_frame)["get_and_maybe_log_recompilation_reasons"] = noted_reasons


class _Frame(threading.local):
    """The frame that this thread is compiling, and why it is compiled again."""

    code: CodeType | None = None
    reasons: Sequence[str] = ()

    def __init__(self) -> None:
        self.shape_envs: list[ShapeEnv] = []
        """The shapes of the graphs that we were given, in all attempts to compile the frame."""


FRAME = _Frame()


def _forget_inputs() -> None:
    """Release the fakes of a frame's inputs, which Dynamo needs until it has made its guards.

    They are referred to by the `ShapeEnv` and, through their symbolic sizes, refer to it.  Python
    does not see the latter references, so these cycles would never be freed.
    """
    for shape_env in FRAME.shape_envs:
        shape_env.tracked_fakes = None
    FRAME.shape_envs.clear()


def compiled_function() -> str:
    """The name of the function whose frame is being compiled."""
    return "" if FRAME.code is None else FRAME.code.co_name


def recompilation_reasons() -> tuple[str, ...]:
    """The guards that failed, if the frame that is being compiled was compiled before."""
    return tuple(FRAME.reasons or ())


def sizes_become_symbols() -> bool:
    """Whether Dynamo makes a size a symbol when it has another value for the first time."""
    return bool(dynamo_config.automatic_dynamic_shapes)


# Dynamo's functions that cache by code object: one without a bound, one for 128 of them.
_CACHED_BY_CODE = (
    (dynamo_guards, "code_framelocals_names_reversed_cached"),
    (bytecode_transformation, "_cached_cleaned_instructions"),
)


def _forget_code() -> None:
    """Drop what Dynamo would keep of a compiled frame's code, even after `torch._dynamo.reset()`.

    Besides the caches, each compilation adds two captured stacks to the metrics of its thread.
    """
    for module, name in _CACHED_BY_CODE:
        cached = getattr(module, name, None)
        if cached is not None:
            cached.cache_clear()
    metrics = dynamo_utils.get_metrics_context()
    if not metrics.in_progress():
        metrics._edits.clear()


def _options_of(compiler: object) -> Mapping[str, object]:
    """The `options` of `torch.compile`."""
    inner = getattr(compiler, "_torchdynamo_orig_backend", compiler)
    return (getattr(inner, "kwargs", None) or {}).get("options") or {}


def is_general_attempt() -> bool:
    """Whether Dynamo is compiling for general shapes, the first attempt of `adapt_frames`."""
    return TracingContext.try_get() is not None and bool(shape_config.backed_size_oblivious)


def derivatives_in_graphs() -> contextlib.AbstractContextManager[None]:
    """A context in which Dynamo traces `torch.autograd.grad` instead of breaking the graph."""
    manager: contextlib.AbstractContextManager[None] = dynamo_config.patch(trace_autograd_ops=True)
    return manager


@contextlib.contextmanager
def general_shapes() -> Iterator[None]:
    """A context in which symbolic sizes are not specialized if they are 0, 1 or equal.

    Torch's own formulas may then contradict themselves, say of an empty batch.
    """
    with (
        unlogged,
        shape_config.patch(  # type: ignore[attr-defined]
            backed_size_oblivious=True, use_duck_shape=False
        ),
    ):
        yield
