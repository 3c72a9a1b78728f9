"""`adjoint.export`: captures a function, compiles what may be asked of it, and writes a file."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import llvmlite.binding as llvm
import sympy
import torch

from adjoint.capture.direct import module_of, state_of
from adjoint.compiler import Compiler
from adjoint.errors import ExportError
from adjoint.exported import safetensors
from adjoint.exported.file import Beside, Exported, write_whole, written
from adjoint.exported.loading import CLOSURE, STATE
from adjoint.exported.records import (
    ConstantRecord,
    ProgramRecord,
    SizeRecord,
    TensorRecord,
)
from adjoint.exporting.asking import ANY, Asked, Bounds, asked_for
from adjoint.exporting.code import Code, levels, machine
from adjoint.exporting.graphs import Exporting
from adjoint.forms.form import Unwritable
from adjoint.graph.boundary import location_of_function
from adjoint.graph.calling import BaseOf, FromCaller
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.metadata import value_or_none
from adjoint.kept import versions
from adjoint.options import Options
from adjoint.runtime.cpu.products import has_blas
from adjoint.runtime.sharing import sharing
from adjoint.store.entries import digest_of
from adjoint.target import cpu_target
from adjoint.torch_private import trees
from adjoint.torch_private.size_evaluation import first_violated

# Axes of a tensor whose sizes may vary: all of them, some, or some with bounds.
Axes: TypeAlias = "bool | Sequence[int] | Mapping[int, bool | tuple[int, int | None]]"


def export(
    function: Callable[..., object],
    args: Sequence[object],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, object] | None = None,
    dynamic: bool | Mapping[str, Axes] = False,
    orders: int = 1,
    wrt: Sequence[str] | None = None,
    cpus: Sequence[str] | None = None,
    parameters: Literal["inside", "beside"] = "inside",
    options: Mapping[str, object] | None = None,
) -> Path:
    """Write `function`, as called with these example arguments, and its derivatives to a file.

    `adjoint.load(path)` gives it back, in a process that needs no compiler.

    `dynamic`: sizes that may vary.  True: all sizes of all arguments; or for each argument, by
    name, its axes: `{"x": [0], "edges": {1: (1, 5000)}}`.

    `orders`: how often it can be differentiated.  `wrt`: the names of the arguments, parameters and
    buffers it can be differentiated with respect to; by default the arguments that require grad, or
    all floating-point arguments if none does.

    `cpus`: levels of x86-64 processors to have code for, such as `("x86-64-v2", "x86-64-v3")`; by
    default the highest that this machine has.

    `parameters`: whether parameters are in the file, or beside it in a safetensors file of the same
    name.  Raises `ExportError` for what has no form in a file.

    >>> import pathlib, tempfile, torch, adjoint
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.adjoint"
    >>> x = torch.rand(4, 3)
    >>> _ = adjoint.export(lambda x: (x * x).sum(), (x,), path, dynamic={"x": [0]})
    >>> square = adjoint.load(path)
    >>> y = torch.ones(7, 3, requires_grad=True)
    >>> torch.autograd.grad(square(y), y)[0].sum()
    tensor(42.)
    """
    if parameters not in ("inside", "beside"):
        raise ExportError(f"parameters={parameters!r}; choose 'inside' or 'beside'")
    if type(orders) is not int or orders < 0:
        raise ExportError(f"orders={orders!r}; choose 0, 1, 2, ...")
    file = Path(path)
    chosen = levels(cpus)
    settings = Options.parse(options or {})
    if settings.target != "native":
        raise ExportError(f"an exported program is native: not target={settings.target!r}")
    asked = asked_for(function, tuple(args), dict(kwargs or {}), dynamic, wrt, orders)
    exported, tensors = _made(function, asked, orders, chosen, settings)
    data = safetensors.written(tensors)
    if parameters == "beside":
        beside = file.with_name(f"{file.name}.safetensors")
        write_whole(beside, data)
        exported = _with_tensors(exported, Beside(beside.name, digest_of(data)))
    else:
        exported = _with_tensors(exported, data)
    try:
        content = written(exported)
    except Unwritable as error:
        raise ExportError(f"its arguments or results have no form in a file: {error}") from error
    write_whole(file, content)
    return file


def _with_tensors(exported: Exported, tensors: bytes | Beside) -> Exported:
    return replace(exported, tensors=tensors)


def _made(
    function: Callable[..., object],
    asked: Asked,
    orders: int,
    cpus: tuple[str, ...],
    options: Options,
) -> tuple[Exported, dict[str, torch.Tensor]]:
    """The content of the file but for its tensors, and these by their names."""
    compiler = Compiler(options)
    with torch.enable_grad():
        captured = compiler.captured_call(function, asked.args, asked.kwargs, asked.axes)
    _require_on_cpu(captured)
    assert captured.guards is not None
    draws = options.eager_rng is not None and not options.eager_rng
    target = cpu_target(machine(cpus[0]), has_blas(), draws)
    exporting = Exporting(compiler, target, Code(cpus))
    leaves = [each for each in asked.leaves if isinstance(each, torch.Tensor)]
    inputs = captured.leaves(leaves)
    places = _differentiable(function, captured, asked, inputs)
    graph = exporting.graph(captured.graph_module, _graph_places(captured, places), orders)
    captured.guards.close()
    names = _state_names(function, captured)
    records = _records(captured, asked, inputs, names)
    conditions = tuple(dict.fromkeys([*captured.guards.conditions, *exporting.assumed]))
    signature = captured.signature
    assert signature is not None
    first, last = len(captured.bound), len(captured.bound) + len(leaves)
    given = iter(records[first:last])
    record = ProgramRecord(
        orders,
        asked.positional,
        trees.unflatten([*range(len(asked.leaves))], signature.in_spec),
        tuple(
            next(given) if isinstance(leaf, torch.Tensor) else ConstantRecord(path, leaf)
            for path, leaf in zip(asked.paths, asked.leaves, strict=True)
        ),
        trees.unflatten([*range(len(captured.calling.results))], signature.out_spec),
        tuple(records[:first]),
        tuple(records[last:]),
        tuple(places),
        _sizes(captured, asked, inputs, conditions),
        conditions,
        captured.calling,
        _sharing(captured, inputs),
        graph,
    )
    tensors = {
        **{f"{STATE}.{n}.{records[n].path}": each for n, each in enumerate(captured.bound)},
        **{
            f"{CLOSURE}.{n}.{records[last + n].path}": each
            for n, each in enumerate(captured.closed_over)
        },
        **exporting.constants.tensors,
    }
    facts = _facts(function, cpus, orders)
    label = str(location_of_function(function))
    plans, targets = tuple(exporting.plans), exporting.code.targets()
    return Exported(facts, label, record, plans, targets, b""), tensors


def _require_on_cpu(captured: CapturedProgram) -> None:
    for node in captured.graph_module.graph.nodes:
        for leaf in trees.leaves(value_or_none(node)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
                raise ExportError(
                    f"programs are exported for the CPU, and a tensor is on {leaf.device}: move "
                    "the module and its arguments with .cpu()"
                )


def _facts(function: Callable[..., object], cpus: Sequence[str], orders: int) -> dict[str, str]:
    """Where the file comes from."""
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", "") or ""
    return {
        **versions(),
        "function": f"{module}.{name}",
        "orders": str(orders),
        "system": platform.system(),
        "machine": platform.machine(),
        "triple": machine(cpus[0]).triple,
        "cpus": ", ".join(cpus),
        "LLVM": ".".join(map(str, llvm.llvm_version_info)),
    }


def _state_names(function: Callable[..., object], captured: CapturedProgram) -> list[str]:
    """The names of the module's parameters and buffers, in the order of the inputs."""
    names: dict[int, str] = {}
    for name, tensor in state_of(module_of(function)).items():
        names.setdefault(id(tensor), name)
    return [names[id(tensor)] for tensor in captured.bound]


def _differentiable(
    function: Callable[..., object],
    captured: CapturedProgram,
    asked: Asked,
    inputs: Sequence[torch.Tensor],
) -> list[int]:
    """Positions of the inputs that the program can be differentiated with respect to."""
    first = len(captured.bound)
    state = _state_names(function, captured)
    tensors = [n for n, each in enumerate(asked.leaves) if isinstance(each, torch.Tensor)]
    places = {n: first + place for place, n in enumerate(tensors)}
    found: list[int] = [places[n] for n in asked.wrt]
    for name in asked.wrt_state:
        if name not in state:
            known = [*asked.names, *state]
            raise ExportError(f"wrt has {name!r}, which is none of {', '.join(known)}")
        found.append(state.index(name))
    for place in found:
        if not (inputs[place].is_floating_point() or inputs[place].is_complex()):
            raise ExportError(f"wrt has a tensor of {inputs[place].dtype}")
    return sorted(set(found))


def _graph_places(captured: CapturedProgram, places: Sequence[int]) -> list[int]:
    """Positions among the inputs of the graph."""
    return [
        place
        for place, source in enumerate(captured.calling.sources)
        if isinstance(source, FromCaller | BaseOf) and source.index in places
    ]


def _records(
    captured: CapturedProgram, asked: Asked, inputs: Sequence[torch.Tensor], names: Sequence[str]
) -> list[TensorRecord]:
    assert captured.guards is not None
    layouts = captured.guards.layouts()
    paths = [
        *names,
        *(
            p
            for p, leaf in zip(asked.paths, asked.leaves, strict=True)
            if isinstance(leaf, torch.Tensor)
        ),
        *(f"tensor {n} of the closure" for n in range(len(captured.closed_over))),
    ]
    records: list[TensorRecord] = []
    for place, (path, tensor) in enumerate(zip(paths, inputs, strict=True)):
        numbers, axes = layouts[place], tensor.dim()
        records.append(TensorRecord(path, tensor.dtype, numbers[:axes], numbers[axes:]))
    return records


def _sizes(
    captured: CapturedProgram,
    asked: Asked,
    inputs: Sequence[torch.Tensor],
    conditions: Sequence[sympy.Basic],
) -> tuple[SizeRecord, ...]:
    assert captured.guards is not None
    found: list[SizeRecord] = []
    for symbol, place, axis in captured.guards.sizes:
        if axis is None:
            raise ExportError(f"a number that varies ({symbol}) is no argument of a file's program")
        least, most = asked.bounds_of(inputs[place], axis)
        _require_to_vary(symbol, asked.name_of(inputs[place]), axis, (least, most), conditions)
        found.append(SizeRecord(symbol, place, axis, least, most))
    return tuple(found)


def _require_to_vary(
    symbol: sympy.Symbol,
    name: str,
    axis: int,
    bounds: Bounds,
    conditions: Sequence[sympy.Basic],
) -> None:
    """Raise `ExportError` if the program is for one size, or not for the bounds asked for."""
    about = [each for each in conditions if each.free_symbols == {symbol}]
    for each in about:
        if isinstance(each, sympy.Eq) and any(side.is_Integer for side in each.args):
            raise ExportError(
                f"{name}.shape[{axis}] is to vary, and the program fixes it: {each}, where {symbol}"
                " is that size; len(x), int(x.shape[0]) and the like make numbers of sizes: use "
                "x.shape[0] as it is"
            )
    for size in bounds if bounds != ANY else ():
        wrong = None if size is None else first_violated(about, {symbol: size})
        if wrong is not None:
            raise ExportError(
                f"{name}.shape[{axis}] is to vary within {bounds}, and the program assumes {wrong},"
                f" where {symbol} is that size"
            )


def _sharing(captured: CapturedProgram, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    calling = captured.calling
    written_to = tuple(write.to.index for write in calling.writes)
    placed = tuple(place.index for place in calling.placements)
    return sharing(inputs, written_to, placed)
