"""The inputs of a graph of Dynamo's: their fakes, and what they are in the user's frame."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

import sympy
import torch
from torch import fx
from torch._dynamo.source import (
    CallMethodItemSource,
    FloatTensorSource,
    TensorProperty,
    TensorPropertySource,
)
from torch._guards import Source, TracingContext
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatefulSymbolicContext

from adjoint.open_types import TorchValue
from adjoint.torch_private.dynamo import FRAME, is_general_attempt
from adjoint.torch_private.fake import fake_mode_with, storage_key, with_full_storage


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
        FRAME.shape_envs.append(shape_env)
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
    """The qualified name of a parameter or buffer, from its Dynamo source.

    What is no module on the way there, as a list or the object that holds a module, keeps the
    expression by which it is found: other modules of that list have parameters of the same names.
    """
    if "_parameters[" not in source and "_buffers[" not in source:
        return None
    # In a module's own forward it is `self`; others are named by the variable that refers to them.
    rooted = re.sub(
        r"^[LG]\['([^']*)'\]", lambda root: "" if root[1] == "self" else root[1], source
    )
    path = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", rooted)
    return path.removeprefix(".")
