"""Dynamo: fakes and names of a graph's inputs, and how frames are compiled for our backend."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

import sympy
import torch
from torch import fx
from torch._C._dynamo import guards
from torch._dynamo import bytecode_transformation, convert_frame, exc
from torch._dynamo import config as dynamo_config
from torch._dynamo import guards as dynamo_guards
from torch._dynamo import utils as dynamo_utils
from torch._dynamo.source import (
    CallMethodItemSource,
    FloatTensorSource,
    TensorProperty,
    TensorPropertySource,
)
from torch._functorch.autograd_function import autograd_function_apply
from torch._guards import Source, TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatefulSymbolicContext

from adjoint.open_types import TorchValue
from adjoint.torch_private.custom_functions import differentiable_backwards
from adjoint.torch_private.fake import (
    fake_mode_with,
    forget_shapes,
    storage_key,
    with_full_storage,
)
from adjoint.torch_private.logs import unlogged
from adjoint.torch_private.modes import isolated

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


def fresh_fakes(
    graph_module: fx.GraphModule, examples: Sequence[object]
) -> tuple[FakeTensorMode | None, list[TorchValue]]:
    """New fakes of `examples`, with Dynamo's symbols; no mode if Dynamo is not compiling.

    Dynamo's own fakes cannot be used: it has already run the program, including mutations, on them.
    """
    context = TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return None, []
    shape_env = context.fake_mode.shape_env
    if shape_env is not None:
        _FRAME.shape_envs.append(shape_env)
    if is_general_attempt() and any(map(_has_size_zero, examples)):
        raise SpecializationNeeded("an input is empty: its size has to be specialized")
    mode = fake_mode_with(shape_env)
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    fakes: list[TorchValue] = list(examples)
    pairs = list(zip(placeholders, examples, strict=True))
    items = _items(shape_env)
    for base in _bases_not_passed(examples):
        # Dynamo has no guards on it.  It matters only where inputs share memory that is mutated,
        # and such a program is specialized on the storage offset of each input.
        mode.from_tensor(base, static_shapes=True)
    # Bases before their views: the fake of a view would create another fake of its base.
    for index, (node, example) in sorted(enumerate(pairs), key=lambda pair: _is_view(pair[1][1])):
        if not isinstance(example, torch.Tensor):
            traced = node.meta.get("example_value", example)
            if isinstance(traced, (torch.SymInt, torch.SymFloat)):
                fakes[index] = traced
            continue
        symbolic = _own_context(context.tensor_to_context.get(example), node)
        fake = mode.from_tensor(
            example,
            static_shapes=symbolic is None,
            symbolic_context=symbolic,
            source=getattr(symbolic, "tensor_source", None),
        )
        fakes[index] = with_full_storage(fake, example)
        for name in _item_names(node) & items.keys():
            fakes[index].item_memo = items[name]
    return mode, fakes


def _items(shape_env: ShapeEnv | None) -> dict[str, torch.SymInt | torch.SymFloat]:
    """The symbolic numbers that Dynamo has guards for, by the names of their sources."""
    tracked = getattr(shape_env, "tracked_fakes", None) or ()
    return {
        _name(each.source): each.fake
        for each in tracked
        if isinstance(each.fake, (torch.SymInt, torch.SymFloat))
    }


def _item_names(node: fx.Node) -> set[str]:
    """How Dynamo may name the number that an input without axes holds.

    A new fake has a symbol of its own for that number, which guards cannot refer to.  A float of
    the user's frame is such an input as well, and its source is that of the float.
    """
    source = getattr(node.meta.get("grapharg"), "source", None)
    if source is None:
        return set()
    sources = (CallMethodItemSource(source), CallMethodItemSource(FloatTensorSource(source)))
    return {_name(each) for each in (source, *sources)}


class SpecializationNeeded(RuntimeError):
    """The frame must be specialized on the sizes 0 and 1 of this call.

    Torch's symbolic expressions for strides and sizes assume a symbol of at least 2, and are not
    what it computes for empty tensors.
    """


def _has_size_zero(example: object) -> bool:
    """Whether some symbolic size of an input was 0 in the call that is compiled."""
    sizes = example.shape if isinstance(example, torch.Tensor) else [example]
    return any(isinstance(size, torch.SymInt) and size.node.hint == 0 for size in sizes)


def _is_view(example: object) -> bool:
    return isinstance(example, torch.Tensor) and example._is_view()


def _bases_not_passed(examples: Sequence[object]) -> Iterator[torch.Tensor]:
    """The bases of views among `examples` that share memory, unless they are examples, too."""
    tensors = [each for each in examples if isinstance(each, torch.Tensor)]
    memories = [storage_key(each) for each in tensors]
    passed = {id(each) for each in tensors}
    for tensor, memory in zip(tensors, memories, strict=True):
        base = tensor._base if tensor._is_view() else None
        if base is not None and id(base) not in passed and memories.count(memory) > 1:
            yield base


def _own_context(
    symbolic: StatefulSymbolicContext | None, node: fx.Node
) -> StatefulSymbolicContext | None:
    """`symbolic`, with the symbols of Dynamo's own fake of an input.

    For a tensor that other inputs are views of, Dynamo makes one fake, with the symbols of the
    input that it met first, but keeps the context of the last.  Its guards can only refer to
    symbols of its fakes.
    """
    source = getattr(node.meta.get("grapharg"), "source", None)
    traced = node.meta.get("example_value")
    # A tensor subclass has another kind of context, and a fake for each of its inner tensors.
    if symbolic is None or source is None or not isinstance(traced, FakeTensor):
        return symbolic
    if traced.layout is not torch.strided:
        return symbolic
    shape_env = traced.fake_mode.shape_env
    known: dict[str, object] = {}
    for kind, values in (
        (TensorProperty.SIZE, traced.shape),
        (TensorProperty.STRIDE, traced.stride()),
        (TensorProperty.STORAGE_OFFSET, (traced.storage_offset(),)),
    ):
        for axis, value in enumerate(values):
            place = None if kind is TensorProperty.STORAGE_OFFSET else axis
            known[_name(TensorPropertySource(source, kind, place))] = _expression(value)
    made = symbolic.shape_env_to_source_to_symbol_cache.get(id(shape_env), {})
    if symbolic.tensor_source == source and any(name in made for name in known):
        return symbolic
    return dataclasses.replace(
        symbolic, tensor_source=source, shape_env_to_source_to_symbol_cache={id(shape_env): known}
    )


def _expression(number: int | torch.SymInt) -> sympy.Expr:
    return number.node.expr if isinstance(number, torch.SymInt) else sympy.Integer(number)


def _name(source: Source) -> str:
    """The name of a source: a method in some versions of torch, a property in others."""
    return str(source.name() if callable(source.name) else source.name)


def source_name(placeholder: fx.Node) -> str:
    """The Python expression by which the user's frame refers to an input."""
    argument = placeholder.meta.get("grapharg")
    source = getattr(argument, "source", None) or getattr(placeholder, "_dynamo_source", None)
    text = "" if source is None else _name(source)
    return text or placeholder.name


def module_path(source: str) -> str | None:
    """The qualified name of a parameter or buffer, from its Dynamo source."""
    if "_parameters[" not in source and "_buffers[" not in source:
        return None
    parts = re.findall(r"_(?:modules|parameters|buffers)\['([^']*)'\]", source)
    # In a module's own forward it is `self`; others are named by the variable that refers to them.
    root = re.findall(r"\['([^']*)'\]", source.partition("._")[0])
    return ".".join([*(name for name in root if name != "self"), *parts])


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

    By default Dynamo specializes on them before a backend sees the graph, and it has no setting per
    backend.  A frame that needs the specialization (a size of 1 that broadcasts) is compiled again
    with it, unless the error `is_final`.  Both attempts run in the context `during`.
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
        _FRAME.code, _FRAME.reasons = given["code"], []
        try:
            with during(_options_of(compiler), given["code"]), differentiable_backwards():
                try:
                    with derivatives_in_graphs():
                        return compile_twice(*args, **kwargs)
                except leaves_graph:
                    return compile_twice(*args, **kwargs)
        finally:
            _FRAME.code, _FRAME.reasons = None, []
            _forget_inputs()
            _forget_code()

    def compile_twice(*args: Any, **kwargs: Any) -> object:
        try:
            with general_shapes():
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
        _FRAME.reasons = reasons = find_reasons(*args, **kwargs)
        return reasons

    vars(convert_frame)["get_and_maybe_log_recompilation_reasons"] = noted_reasons


class _Frame(threading.local):
    """The frame that this thread is compiling, and why it is compiled again."""

    code: CodeType | None = None
    reasons: Sequence[str] = ()

    def __init__(self) -> None:
        self.shape_envs: list[ShapeEnv] = []
        """The shapes of the graphs that we were given, in all attempts to compile the frame."""


_FRAME = _Frame()


def _forget_inputs() -> None:
    """Release the fakes of a frame's inputs, which Dynamo needs until it has made its guards.

    They are referred to by the `ShapeEnv` and, through their symbolic sizes, refer to it.  Python
    does not see the latter references, so these cycles would never be freed.
    """
    for shape_env in _FRAME.shape_envs:
        shape_env.tracked_fakes = None
    _FRAME.shape_envs.clear()


def compiled_function() -> str:
    """The name of the function whose frame is being compiled."""
    return "" if _FRAME.code is None else _FRAME.code.co_name


def recompilation_reasons() -> tuple[str, ...]:
    """The guards that failed, if the frame that is being compiled was compiled before."""
    return tuple(_FRAME.reasons or ())


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
