"""`adjoint.load`: an exported program, ready to be called."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from adjoint.errors import LoadError
from adjoint.exported import safetensors
from adjoint.exported.file import Beside, Exported, read, trusted
from adjoint.exported.loaded import LoadedProgram
from adjoint.exported.programs import LoadedPrograms, require_gpu
from adjoint.exported.records import GraphRecord, NodeRecord, ProgramRecord, TensorRecord
from adjoint.exported.versions import Version
from adjoint.loops.plan import Plan
from adjoint.store.entries import digest_of
from adjoint.torch_private import trees

# Prefixes of the names of tensors: parameters and buffers, and tensors of the closure.
STATE, CLOSURE = "state", "closure"


def load(path: str | os.PathLike[str]) -> LoadedProgram:
    """An exported program (`adjoint.export`): a function that autograd can differentiate.

    Nothing is compiled, and neither Dynamo nor LLVM is needed.  The file holds machine code: load
    only files that you trust.  Raises `LoadError`, before anything has run, for a file that is
    damaged, that others may have written, or that does not fit this CPU and this torch.

    >>> import pathlib, tempfile, torch, adjoint
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "sine.adjoint"
    >>> _ = adjoint.export(torch.sin, (torch.zeros(3),), path)
    >>> adjoint.load(path)(torch.zeros(3))
    tensor([0., 0., 0.])
    """
    file = Path(path)
    program, programs = validated(trusted(file), file.parent)
    programs.map()
    return program


def validated(data: bytes, folder: Path) -> tuple[LoadedProgram, LoadedPrograms]:
    """The program of a file's bytes, whose code is not mapped yet; raises `LoadError`."""
    exported = read(data)
    require_torch(exported)
    try:
        return _validated(exported, folder)
    except LoadError:
        raise
    except Exception as error:
        raise LoadError(f"it is damaged: {type(error).__name__}: {error}") from error


def _validated(exported: Exported, folder: Path) -> tuple[LoadedProgram, LoadedPrograms]:
    tensors = tensors_of(exported, folder)
    if exported.gpu is not None:
        require_gpu(exported.gpu)
        placed = exported.gpu.placed
        tensors = {name: each.to(placed.get(name, "cpu")) for name, each in tensors.items()}
    named = _named(exported.records, tensors)
    constants = {name: each for name, each in tensors.items() if name not in named}
    programs = LoadedPrograms(exported, constants)
    for plan in programs.plans:
        _require(isinstance(plan.outputs, tuple | list), "a plan returns a list")
    for record in exported.records:
        _check(record, programs.plans)
        _require(_signature(record) == _signature(exported.records[0]), "one signature")
    versions = [
        Version(
            record,
            programs,
            [named[f"{STATE}.{each.path}"] for each in record.state],
            [named[f"{CLOSURE}.{each.path}"] for each in record.closed_over],
        )
        for record in exported.records
    ]
    return LoadedProgram(exported, versions, programs.cpu), programs


def _signature(record: ProgramRecord) -> tuple[object, ...]:
    """What all records of a program have in common."""
    leaves = [
        (each.path, each.dtype, len(each.shape)) if isinstance(each, TensorRecord) else each
        for each in record.leaves
    ]
    common = (record.orders, record.positional, record.arguments, record.state)
    return (*common, record.differentiable, leaves)


def release(version: str) -> str:
    """A version without what says how it was built: `2.13.0` of `2.13.0+cpu`."""
    return version.partition("+")[0]


def require_torch(exported: Exported) -> None:
    """Raise `LoadError` if the program was exported with another torch."""
    theirs = exported.facts.get("torch", "")
    if release(theirs) != release(torch.__version__):
        raise LoadError(
            f"it was exported with torch {theirs[:40]}, and this is {torch.__version__}: what "
            "operators return may differ; export it again"
        )


def tensors_of(exported: Exported, folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a program, from the file or from the one beside it."""
    data = exported.tensors
    if isinstance(data, Beside):
        beside = folder / data.name
        data = trusted(beside)
        if digest_of(data) != exported.tensors.digest:  # type: ignore[union-attr]
            raise LoadError(f"{beside} is not what was exported: its digest is another")
    try:
        return safetensors.read(data)
    except safetensors.BadTensors as error:
        raise LoadError(f"its tensors are damaged: {error}") from error


def _named(
    records: Sequence[ProgramRecord], tensors: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """State and closure, by their names in the file; versions of a program share them."""
    found: dict[str, torch.Tensor] = {}
    for record in records:
        for prefix, wanted in ((STATE, record.state), (CLOSURE, record.closed_over)):
            for each in wanted:
                name = f"{prefix}.{each.path}"
                tensor = tensors.get(name)
                if tensor is None or not _is_like(tensor, each):
                    raise LoadError(f"it is damaged: the tensor {each.path} is missing, or another")
                if name not in found:
                    found[name] = _laid_out(tensor, each)
    return found


def _is_like(tensor: torch.Tensor, record: TensorRecord) -> bool:
    return tensor.dtype == record.dtype and tuple(tensor.shape) == record.shape


def _laid_out(tensor: torch.Tensor, record: TensorRecord) -> torch.Tensor:
    """The tensor with the strides that it was exported with."""
    if tensor.stride() == record.strides or len(record.strides) != tensor.dim():
        return tensor
    if not all(type(each) is int and each > 0 for each in record.strides):
        return tensor
    made = torch.empty_strided(tensor.shape, record.strides, dtype=tensor.dtype, device="cpu")
    return made.copy_(tensor)


# Numbers ------------------------------------------------------------------------------------------


def _check(record: ProgramRecord, plans: list[Plan]) -> None:
    """Raise `LoadError` unless every number in a record is that of something there."""
    leaves = [each for each in record.leaves if isinstance(each, TensorRecord)]
    inputs = len(record.state) + len(leaves) + len(record.closed_over)
    numbers = trees.leaves(record.arguments)
    _require(numbers == [*range(len(record.leaves))], "leaves are numbered")
    _require(trees.leaves(record.results) == [*range(len(record.calling.results))], "results")
    _require(all(0 <= place < inputs for place in record.differentiable), "an input")
    _require(len(record.calling.sources) == _takes(record.graph, plans), "inputs of the graph")
    tensors = [*record.state, *leaves, *record.closed_over]
    for size in record.sizes:
        _require(0 <= size.input < inputs, "a size is that of an input")
        _require(0 <= size.axis < len(tensors[size.input].shape), "a size is that of an axis")
    _require(all(0 <= n < len(record.calling.recipes) for n in record.calling.results), "recipes")
    for graph in _graphs(record.graph):
        _check_graph(graph, plans)


def _takes(graph: GraphRecord, plans: list[Plan]) -> int:
    _require(0 <= graph.plain < len(plans), "a program has a plan")
    plan = plans[graph.plain]
    return len(plan.inputs) - bool(plan.streams)


def _graphs(graph: GraphRecord) -> Iterator[GraphRecord]:
    yield graph
    nodes = [] if graph.node is None else [graph.node, *graph.node.segments]
    for node in nodes:
        for backward in node.backwards:
            yield from _graphs(backward.graph)


def _check_graph(graph: GraphRecord, plans: list[Plan]) -> None:
    count = _takes(graph, plans)
    if graph.node is None:
        return
    _check_node(graph.node, count, plans)


def _check_node(node: NodeRecord, inputs: int, plans: list[Plan]) -> None:
    _require(0 <= node.forward < len(plans), "a program has a plan")
    plan = plans[node.forward]
    _require(len(plan.inputs) - bool(plan.streams) == inputs, "inputs of the forward")
    outputs = len(plan.outputs)
    layout = node.layout
    cuts = len(layout.segments.cuts) if layout.segments is not None else 0
    for segment in node.segments:
        _require(segment.forward == node.forward and not segment.segments, "a segment is a part")
    _require(bool(node.segments) == (layout.segments is not None), "segments")
    if layout.segments is not None:
        _require(len(layout.segments.of_output) == outputs, "an output has a segment")
        _require(len(layout.segments.inputs) == len(node.segments), "segments")
        _require(all(0 <= cut < outputs for cut in layout.segments.cuts), "a cut is an output")
    for each in (node, *node.segments):
        _check_places(each, inputs + cuts, outputs)
        for backward in each.backwards:
            saved = len(each.layout.saved_inputs) + len(each.layout.saved_outputs)
            _require(all(0 <= place < saved for place in backward.saved), "saved values")
            of = backward.of
            _require(bool(of) and all(0 <= n < outputs for n in of), "cotangents of outputs")
            _require(all(0 <= place < len(each.wrt) for place in backward.zeros), "gradients")
            takes = _takes(backward.graph, plans)
            _require(takes == len(backward.saved) + len(backward.of), "inputs of a backward")
            returned = len(plans[backward.graph.plain].outputs)
            _require(returned == len(each.wrt), "a backward returns gradients")


def _check_places(node: NodeRecord, inputs: int, outputs: int) -> None:
    layout = node.layout
    _require(all(0 <= place < inputs for place in (*node.wrt, *layout.saved_inputs)), "inputs")
    returned = (*layout.saved_outputs, *layout.order, *layout.history, *layout.own)
    _require(all(0 <= place < outputs for place in returned), "outputs")
    _require(0 <= layout.results <= outputs, "results are outputs")
    _require(len(node.depends) == len(node.wrt), "what depends on an input")
    # Saved values have cotangents only where a derivative is differentiated again.
    wanted = {
        place
        for place in layout.order
        if place < layout.results or not all(each.graph.ends for each in node.backwards)
    }
    has_all = any(wanted <= {*backward.of} for backward in node.backwards)
    _require(has_all or not wanted or bool(node.segments), "a backward of all outputs")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise LoadError(f"it is damaged: not so: {what}")
