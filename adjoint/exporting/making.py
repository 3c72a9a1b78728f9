"""`adjoint.export`: captures a function, compiles what may be asked of it, and writes a file."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias

import llvmlite.binding as llvm
import torch

from adjoint.capture.direct import module_of, state_of
from adjoint.compiler import Compiler
from adjoint.errors import ExportError
from adjoint.exported import safetensors
from adjoint.exported.file import Beside, Exported, Gpu, write_whole, written
from adjoint.exporting.asking import Asked, asked_for
from adjoint.exporting.code import Code, GpuModules, capabilities, levels, machine
from adjoint.exporting.graphs import Exporting
from adjoint.exporting.recording import Recording
from adjoint.forms.form import Unwritable
from adjoint.graph.boundary import location_of_function
from adjoint.options import Options
from adjoint.runtime.cpu.products import has_blas
from adjoint.store.entries import digest_of
from adjoint.store.versions import versions
from adjoint.target import CPU, cpu_target, cuda_target

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
    gpus: Sequence[str] | None = None,
    parameters: Literal["inside", "beside"] = "inside",
    options: Mapping[str, object] | Options | None = None,
) -> Path:
    """Write `function`, as called with these example arguments, and its derivatives to a file.

    `adjoint.load(path)` gives it back, in a process that needs no compiler.

    `dynamic`: sizes that may vary.  True: all sizes of all arguments; or for each argument, by
    name, its axes: `{"x": [0], "edges": {1: (1, 5000)}}`.

    `orders`: how often it can be differentiated.  `wrt`: the names of the arguments, parameters and
    buffers it can be differentiated with respect to; by default the arguments that require grad, or
    all floating-point arguments if none does.

    `cpus`: levels of x86-64 CPUs to have code for, such as `("x86-64-v2", "x86-64-v3")`; by
    default the highest that this machine has.  `gpus`: if arguments or parameters are on a GPU,
    compute capabilities to have code for, such as `("8.0", "9.0")`; by default that of this GPU.

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
    settings = Options.parse(options)
    if settings.target != "native":
        raise ExportError(f"an exported program is native: not target={settings.target!r}")
    asked = asked_for(function, tuple(args), dict(kwargs or {}), dynamic, wrt, orders)
    device = _device(function, asked)
    if device == CPU and gpus is not None:
        raise ExportError(f"gpus={gpus!r}, and no argument or parameter is on a GPU")
    chosen_gpus = () if device == CPU else capabilities(gpus, device)
    exported, tensors = _made(function, asked, orders, chosen, device, chosen_gpus, settings)
    try:
        data = safetensors.written(tensors)
    except safetensors.BadTensors as error:
        raise ExportError(f"a parameter has no form in a file: {error}") from error
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
    device: torch.device,
    gpus: tuple[tuple[int, int], ...],
    options: Options,
) -> tuple[Exported, dict[str, torch.Tensor]]:
    """The content of the file but for its tensors, and these by their names."""
    draws = device != CPU if options.eager_rng is None else not options.eager_rng
    if gpus:
        target = cuda_target(device, gpus[0], draws, options.cuda_graphs)
        code: Code = GpuModules(cpus, target, gpus)
    else:
        target = cpu_target(machine(cpus[0]), has_blas(), draws)
        code = Code(cpus)
    exporting = Exporting(Compiler(options), target, code)
    recording = Recording(function, exporting, orders)
    records = recording.versions(asked)
    facts = _facts(function, cpus, gpus, orders)
    label = str(location_of_function(function))
    plans, targets = tuple(exporting.plans), exporting.code.targets()
    tensors = {**recording.tensors, **exporting.constants.tensors}
    gpu = None
    if isinstance(code, GpuModules):
        placed = {n: str(each.device) for n, each in tensors.items() if each.device != CPU}
        gpu = Gpu(str(device), draws, target.captures_cuda_graphs, code.codes(), placed)
    return Exported(facts, label, records, plans, targets, b"", gpu), tensors


def _device(function: Callable[..., object], asked: Asked) -> torch.device:
    """The GPU that arguments, parameters or buffers are on, or else the CPU."""
    tensors = [*asked.leaves, *state_of(module_of(function)).values()]
    devices = {each.device for each in tensors if isinstance(each, torch.Tensor)} - {CPU}
    if not devices:
        return CPU
    if len(devices) > 1 or next(iter(devices)).type != "cuda":
        names = ", ".join(sorted(map(str, devices)))
        raise ExportError(f"programs are exported for the CPU or for one NVIDIA GPU, not {names}")
    return devices.pop()


def _facts(
    function: Callable[..., object],
    cpus: Sequence[str],
    gpus: Sequence[tuple[int, int]],
    orders: int,
) -> dict[str, str]:
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
        "gpus": ", ".join(f"{major}.{minor}" for major, minor in gpus),
        "LLVM": ".".join(map(str, llvm.llvm_version_info)),
    }
