"""Generates the two Python functions of a plan.

One creates the temporaries that library calls use, as tensors in the memory of the binding; the
other runs the kernels, and the library calls between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from adjoint.graph.evaluation import InOwnMemory
from adjoint.graph.partial_writes import put_back
from adjoint.loops.plan import (
    Argument,
    LibraryCall,
    Number,
    SlotKind,
    arguments_of,
)
from adjoint.loops.runs import (
    INNER,
    Run,
    has_new_results,
    is_fixed_view,
    last_uses,
    numbers_in,
    read_by_kernels,
)
from adjoint.runtime.checking import checked_call
from adjoint.runtime.cpu.callables import takes_tensors
from adjoint.runtime.plans.host import Host
from adjoint.runtime.plans.hostcode import Value
from adjoint.strides import span_of
from adjoint.torch_private import trees

# Kernels for a GPU load 16 bytes at a time.
INPUT_ALIGNMENT_BYTES = 16


def fit(tensor: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """`tensor`, or a copy of it if its strides or its address are not what kernels expect."""
    found = tensor.stride()
    alike = found == strides or _are_alike(shape, strides, found)
    if not tensor.is_neg():
        if alike and _is_readable(tensor):
            return tensor
        dense = tensor.contiguous()
        found = dense.stride()
        if (found == strides or _are_alike(shape, strides, found)) and _is_readable(dense):
            return dense
    if alike and tensor.numel():
        # Elements may overlap, and nothing can be copied into overlapping strides: so their memory
        # is copied.  A clone of flat memory has the values that a lazy negation stands for.
        span = span_of(shape, strides)
        return tensor.as_strided((span,), (1,)).clone().as_strided(shape, strides)
    copy = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    if 0 in strides and tensor.numel():
        # The values of an expanded tensor are equal along the axes that it is expanded along.
        first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
        if not torch.equal(tensor[first].expand(shape), tensor):
            raise RuntimeError(f"a tensor with strides {strides} was expected, not {tensor}")
        copy[first].copy_(tensor[first])
        return copy
    return copy.copy_(tensor)


def _are_alike(shape: tuple[int, ...], strides: tuple[int, ...], found: tuple[int, ...]) -> bool:
    """Whether strides differ only where a size is 1."""
    for size, one, other in zip(shape, strides, found, strict=True):
        if one != other and size != 1:
            return False
    return True


def _is_readable(tensor: torch.Tensor) -> bool:
    address = tensor.data_ptr()
    return bool(address) and address % INPUT_ALIGNMENT_BYTES == 0


def overwritten(tensor: torch.Tensor) -> torch.Tensor:
    """The input itself if it may be written to, else a copy.

    Inference tensors can be written to in inference mode alone: outside of it the caller raises.
    """
    is_protected = tensor.is_inference() and not torch.is_inference_mode_enabled()
    return tensor.clone() if is_protected else tensor


class Writer(ABC):
    """Generates the source of a plan's Python functions, and the constants that they refer to.

    Sizes that are no constants are read from the words of the binding.
    """

    parameters = "inputs, binding"
    names: ClassVar[Mapping[str, object]] = {}
    """What the functions of a target refer to, besides what those of all targets do."""

    @abstractmethod
    def new(self, slot: int, shape: str, strides: str, dtype: str) -> str:
        """The expression that allocates a result."""

    @abstractmethod
    def enter(self, place: int, call_slots: Sequence[int]) -> None:
        """Write the execution of a run of kernels."""

    def __init__(self, host: Host, runs: Sequence[Run], checks: bool = False) -> None:
        self.host = host
        self.plan = plan = host.plan
        self.runs = runs
        self.checks = checks
        self.lines: list[str] = []
        self.constants: dict[str, object] = {
            "fit": fit,
            "overwritten": overwritten,
            "put_back": put_back,
            "checked_call": checked_call,
            "as_strided": torch.as_strided,
            "InOwnMemory": InOwnMemory,
            **self.names,
        }
        self.fixed = {slot.number for slot in plan.slots if slot.kind is SlotKind.TEMPORARY}
        self.overwrites = any(
            isinstance(step, LibraryCall) and plan.slots[step.result].replaces is not None
            for step in plan.steps
        )
        """Whether library calls write to inputs: that is undone if the program fails."""
        self.indent = "    "
        self.made: set[int] = set()
        self.count = 0
        self.place = 0
        """How many sizes among the arguments of library calls come before the next."""

    def text(self) -> tuple[str, dict[str, object]]:
        """The source, and the constants."""
        self._run_text()
        self.lines.append("")
        self._bind_text()
        return "\n".join(self.lines) + "\n", self.constants

    def tensors(self) -> list[int]:
        """The temporaries that have to be tensors: library calls and the caller use them."""
        used: set[int] = set()
        for step in self.plan.steps:
            if isinstance(step, LibraryCall):
                used |= {*arguments_of(step), step.result}
        used |= {leaf.slot for leaf in trees.leaves(self.plan.outputs) if _is_argument(leaf)}
        kinds = self.plan.slots
        return sorted(slot for slot in used if kinds[slot].kind is SlotKind.TEMPORARY)

    def _bind_text(self) -> None:
        self.lines.append("def bind(binding):")
        self.line("tensors, w = binding.tensors, binding.words")
        fixed: set[int] = set()
        typed: dict[torch.dtype, str] = {}
        for slot in self.tensors():
            dtype = self.plan.slots[slot].dtype
            assert dtype is not None
            if dtype not in typed:
                typed[dtype] = f"flat{len(typed)}"
                self.line(f"{typed[dtype]} = binding.typed({self.constant(dtype, 'dtype')})")
            offset = f"{self.number(self.host.offsets[slot])} // {dtype.itemsize}"
            where = f"{self.sizes('shapes', slot)}, {self.sizes('strides', slot)}, {offset}"
            self.line(f"tensors[{slot}] = as_strided({typed[dtype]}, {where})")
            fixed.add(slot)
        place = 0
        for step in self.plan.steps:
            if isinstance(step, LibraryCall):
                if is_fixed_view(step, fixed):
                    fixed.add(step.result)
                    self.fixed.add(step.result)
                    self.place = place
                    target, args = self._call(step)
                    self.line(f"tensors[{step.result}] = {target}({', '.join(args)})")
                place += len(list(numbers_in(step)))

    def _run_text(self) -> None:
        plan = self.plan
        last = last_uses(plan)
        ends: dict[int, list[int]] = {}
        for slot, place in last.items():
            ends.setdefault(place, []).append(slot)
        names = ", ".join(f"s{slot}" for slot in plan.inputs)
        self.lines += [f"def run({self.parameters}):"]
        if names:
            self.line(f"{names}, = inputs")
        self.line("inputs.clear()")
        self.line("tensors, runs, w = binding.tensors, binding.runs, binding.words")
        if self.overwrites:
            self.line("undo = []")
            self.line("try:")
            self.indent += "    "
        read = read_by_kernels(plan, self.runs)
        self.fit_inputs([slot for slot in plan.inputs if slot in read])
        place_of_number = 0
        first_of = {run.steps[0][0]: place for place, run in enumerate(self.runs)}
        for place, step in enumerate(plan.steps):
            if isinstance(step, LibraryCall):
                self.invoke(step, place_of_number, read)
                place_of_number += len(list(numbers_in(step)))
            elif place in first_of:
                self.run(first_of[place])
            # After the last step the function returns, and all are freed.
            for slot in ends.get(place, ()) if place + 1 < len(plan.steps) else ():
                if slot not in self.fixed and plan.slots[slot].kind not in INNER:
                    self.line(f"s{slot} = None")
        returned = self.tree(plan.outputs)
        if has_new_results(plan):
            returned = f"InOwnMemory({returned})"
        self.line(f"return {returned}")
        if self.overwrites:
            self.indent = self.indent[:-4]
            self.line("except BaseException:")
            self.line("    put_back(undo)")
            self.line("    raise")

    def line(self, text: str) -> None:
        self.lines.append(f"{self.indent}{text}")

    def constant(self, value: object, name: str) -> str:
        self.count += 1
        full = f"{name}_{self.count}"
        self.constants[full] = value
        return full

    def fit_inputs(self, slots: Sequence[int]) -> None:
        """Write code that copies the inputs that kernels cannot read as they are."""
        for slot in slots:
            self.fitted(slot)

    def fitted(self, slot: int) -> None:
        strides = self.sizes("strides", slot)
        self.line(f"if s{slot}.stride() != {strides} or {self.is_unreadable(f's{slot}')}:")
        self.line(f"    s{slot} = fit(s{slot}, {self.sizes('shapes', slot)}, {strides})")

    def is_unreadable(self, name: str) -> str:
        # The memory of a lazily negated tensor has other values, and a ZeroTensor has no memory.
        return f"{name}.is_neg() or not {name}.data_ptr()"

    def sizes(self, what: str, slot: int) -> str:
        values = self.host.shapes if what == "shapes" else self.host.strides
        return f"({''.join(f'{self.number(value)}, ' for value in values[slot])})"

    def number(self, value: Value) -> str:
        return f"w[{value.index}]" if value.known is None else str(value.known)

    def allocated(self, slot: int) -> None:
        if self.plan.slots[slot].kind is SlotKind.OUTPUT and slot not in self.made:
            self.made.add(slot)
            replaces = self.plan.slots[slot].replaces
            if replaces is not None:
                self.line(f"s{slot} = overwritten(s{replaces})")
                return
            dtype = self.constant(self.plan.slots[slot].dtype, "dtype")
            shape, strides = self.sizes("shapes", slot), self.sizes("strides", slot)
            self.line(f"s{slot} = {self.new(slot, shape, strides, dtype)}")

    def run(self, place: int) -> None:
        call_slots = self.runs[place].call_slots
        for slot in call_slots:
            self.allocated(slot)
        self.enter(place, call_slots)

    def _call(self, step: LibraryCall) -> tuple[str, list[str]]:
        """The function that a library call calls, and its arguments."""
        args = [self.tree(arg) for arg in step.args]
        args += [f"{name}={self.tree(value)}" for name, value in step.kwargs.items()]
        name = getattr(step.target, "__name__", "call").replace(".", "_")
        return self.constant(step.target, name if name.isidentifier() else "call"), args

    def invoke(self, step: LibraryCall, place: int, read: set[int]) -> None:
        if is_fixed_view(step, self.fixed):
            self.fixed.add(step.result)
            return
        self.allocated(step.result)
        self.place = place
        target, args = self._call(step)
        if step.writes:
            args.append(f"out={self.value(step.result)}")
            if self.plan.slots[step.result].replaces is not None:
                args.append("undo=undo")
            self.line(f"{target}({', '.join(args)})")
            return
        called = f"{target}({', '.join(args)})"
        if self.checks and step.expected:
            named = f"dict({', '.join(args[len(step.args) :])})"
            given = f"({''.join(f'{arg}, ' for arg in args[: len(step.args)])}), {named}"
            called = f"checked_call({self.constant(step, 'step')}, binding, {target}, {given})"
        self.line(f"s{step.result} = {called}")
        if step.result in read and self.plan.slots[step.result].shape is not None:
            self.fitted(step.result)

    def value(self, slot: int) -> str:
        return f"tensors[{slot}]" if slot in self.fixed else f"s{slot}"

    def tree(self, tree: object) -> str:
        match tree:
            case Argument(slot):
                return self.value(slot)
            case Number():
                self.place += 1
                return self.number(self.host.numbers[self.place - 1])
            case tuple():
                return f"({''.join(f'{self.tree(each)}, ' for each in tree)})"
            case list():
                return f"[{', '.join(self.tree(each) for each in tree)}]"
            case dict():
                return f"{{{', '.join(f'{key!r}: {self.tree(v)}' for key, v in tree.items())}}}"
            case slice():
                ends = [self.tree(each) for each in (tree.start, tree.stop, tree.step)]
                return f"slice({', '.join(ends)})"
            case None | bool() | int() | str():
                return repr(tree)
            case _:
                return self.constant(tree, "value")


def _is_argument(leaf: object) -> bool:
    return isinstance(leaf, Argument)


class NativeWriter(Writer):
    """For native kernels: a run is one native call, given tensors or their addresses."""

    def fit_inputs(self, slots: Sequence[int]) -> None:
        if not takes_tensors():
            super().fit_inputs(slots)
        elif slots:
            self.line(f"misfits = binding.misfits({', '.join(f's{slot}' for slot in slots)})")
            self.line("if misfits:")
            for place, slot in enumerate(slots):
                self.line(f"    if misfits & {1 << place}:")
                where = f"{self.sizes('shapes', slot)}, {self.sizes('strides', slot)}"
                self.line(f"        s{slot} = fit(s{slot}, {where})")

    def enter(self, place: int, call_slots: Sequence[int]) -> None:
        address = "" if takes_tensors() else ".data_ptr()"
        self.native(f"runs[{place}]({''.join(f's{slot}{address}, ' for slot in call_slots)}")

    @abstractmethod
    def native(self, call: str) -> None:
        """Write the native call, to be completed by its last argument."""
