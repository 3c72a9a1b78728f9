"""What an exported file holds, as text: signature, sizes, targets, digests, provenance."""

from __future__ import annotations

from pathlib import Path

import torch

from adjoint.errors import LoadError
from adjoint.exported.file import Beside, CpuCode, Exported, read, trusted
from adjoint.exported.loading import require_torch, tensors_of
from adjoint.exported.programs import HeldTensors, fitting, require_gpu
from adjoint.exported.records import ConstantRecord, TensorRecord
from adjoint.forms.plans import read_plan
from adjoint.graph.calling import BaseOf, Constant, FromCaller, FromGraph, View
from adjoint.loops.plan import Argument, Plan
from adjoint.store.entries import digest_of
from adjoint.torch_private import trees

_PROVENANCE = ("function", "torch", "adjoint", "python", "LLVM", "system", "triple")


def inspected(path: Path) -> str:
    """The text about a file; raises `LoadError`.  Nothing of it is mapped or run."""
    data = trusted(path)
    exported = read(data)
    record, tensors = exported.records[0], tensors_of(exported, path.parent)
    plans = [read_plan(each.text, HeldTensors(tensors)) for each in exported.plans]
    lines = [f"{path.name}: an exported program, {len(data):,} bytes", ""]

    def section(title: str, content: list[str]) -> None:
        for place, each in enumerate(content or ["none"]):
            lines.append(f"{title if place == 0 else '':<12} {each}")

    section("arguments", [_leaf(each) for each in record.leaves])
    section("results", _results(exported, plans))
    inputs = [*record.state, *(e for e in record.leaves if isinstance(e, TensorRecord))]
    inputs += record.closed_over
    section(
        "sizes",
        [
            f"{each.symbol} = {inputs[each.input].path}.shape[{each.axis}], "
            + (f"{each.least} or more" if each.most is None else f"{each.least} to {each.most}")
            for each in record.sizes
        ]
        or ["all fixed"],
    )
    for number, each in enumerate(exported.records):
        title = "conditions" if number == 0 else "or, of other sizes"
        section(title, [", ".join(map(str, each.conditions)) or "none"])
    with_respect_to = ", ".join(inputs[place].path for place in record.differentiable)
    section(
        "derivatives",
        [f"to order {record.orders}, with respect to {with_respect_to or 'nothing'}"]
        if record.orders
        else [],
    )
    section("tensors", _tensors(exported, tensors))
    section("programs", [_plan(number, plan) for number, plan in enumerate(plans)])
    section("code", [*_gpu_codes(exported), *(_target(each) for each in exported.targets)])
    section("made by", [f"{n}: {exported.facts[n]}" for n in _PROVENANCE if n in exported.facts])
    section("made of", [line.strip() for line in exported.label.splitlines()])
    section("sha256", [digest_of(data)])
    section("fits here", [_fit(exported)])
    return "\n".join(lines)


def _typed(dtype: torch.dtype | None, shape: object) -> str:
    sizes = ", ".join(map(str, shape)) if isinstance(shape, tuple) else "?"
    return f"{str(dtype).removeprefix('torch.')}[{sizes}]"


def _leaf(leaf: TensorRecord | ConstantRecord) -> str:
    if isinstance(leaf, ConstantRecord):
        return f"{leaf.path} = {leaf.value!r}, always"
    return f"{leaf.path}: {_typed(leaf.dtype, leaf.shape)}"


def _results(exported: Exported, plans: list[Plan]) -> list[str]:
    record = exported.records[0]
    plan = plans[record.graph.plain]
    found: list[str] = []
    for place in record.calling.results:
        match record.calling.recipes[place]:
            case FromGraph(index):
                output = plan.outputs[index]
                slot = plan.slots[output.slot] if isinstance(output, Argument) else None
                found.append(_typed(slot.dtype, slot.shape) if slot and slot.dtype else "a value")
            case FromCaller(index):
                found.append(f"input {index} itself")
            case Constant(value):
                found.append(repr(value))
            case BaseOf() | View():
                found.append("a view")
    template = trees.map_leaves(lambda number: f"result {number}", record.results)
    return [f"{template}".replace("'", ""), *(f"result {n}: {e}" for n, e in enumerate(found))]


def _tensors(exported: Exported, tensors: dict[str, torch.Tensor]) -> list[str]:
    where = exported.tensors
    bytes_ = sum(each.numel() * each.element_size() for each in tensors.values())
    place = f"beside it in {where.name}" if isinstance(where, Beside) else "inside"
    digest = where.digest if isinstance(where, Beside) else digest_of(where)
    names = [each.path for each in exported.records[0].state]
    return [f"{len(tensors)} of {bytes_:,} bytes, {place}; sha256 {digest}", *names[:20]]


def _plan(number: int, plan: Plan) -> str:
    return (
        f"{number}: {len(plan.inputs)} inputs, {len(plan.steps)} steps, {len(plan.launches)} "
        "kernel launches"
    )


def _target(target: CpuCode) -> str:
    image = target.image
    return (
        f"{target.cpu}: {len(image.functions)} functions, {len(image.code):,} bytes; "
        f"sha256 {digest_of(image.code)}; calls {', '.join(image.imports) or 'nothing'}"
    )


def _gpu_codes(exported: Exported) -> list[str]:
    """What a program for a GPU has for each compute capability."""
    if exported.gpu is None:
        return []
    return [
        f"{exported.gpu.device}, compute capability {'.'.join(map(str, each.capability))}: "
        f"{len(each.modules)} kernels, {sum(map(len, each.modules.values())):,} bytes of PTX"
        for each in exported.gpu.codes
    ]


def _fit(exported: Exported) -> str:
    try:
        require_torch(exported)
        if exported.gpu is not None:
            require_gpu(exported.gpu)
        return f"yes, with the code for {fitting(exported.targets).cpu}"
    except LoadError as error:
        return f"no: {error}"
