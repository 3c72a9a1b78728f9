"""A reference evaluator of loop nests in plain Python: the oracle of every code generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import SupportsInt

import numpy as np
import torch
from typing_extensions import assert_never

from adjoint.dtypes import HALVES
from adjoint.loops.expressions import (
    Apply,
    Cast,
    Constant,
    Counter,
    Expression,
    Extent,
    Guarded,
    Load,
    Name,
)
from adjoint.loops.operators import OPERATORS
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Kernel,
    Loop,
    Merge,
    Statement,
    Store,
    TeamMemory,
    Update,
)
from adjoint.open_types import Scalar

# The type that values of a dtype have here.  Half types are computed in float32 and rounded.
_SCALARS: dict[torch.dtype, type[Scalar]] = {
    torch.bool: bool,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float16: np.float32,
    torch.bfloat16: np.float32,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def evaluate(
    kernel: Kernel, buffers: Mapping[str, torch.Tensor], extents: Mapping[str, int]
) -> None:
    """Run the kernel on flat tensors, one for each buffer."""
    with np.errstate(all="ignore"):
        _Evaluation(dict(buffers), dict(extents)).block(kernel.body, {})


class _Evaluation:
    def __init__(self, buffers: dict[str, torch.Tensor], extents: dict[str, int]) -> None:
        self.buffers = buffers
        self.extents = extents
        self.arrays: dict[str, tuple[str, ...]] = {}
        """Accumulators with several elements, and the counters that number them."""
        self.elements: dict[tuple[str, tuple[int, ...]], Scalar] = {}
        self.team: dict[str, list[Scalar]] = {}
        """Memory of the team; None: uninitialized."""

    def block(self, body: tuple[Statement, ...], names: dict[str, Scalar]) -> None:
        for statement in body:
            self.statement(statement, names)

    def statement(self, statement: Statement, names: dict[str, Scalar]) -> None:
        match statement:
            case Loop(counter, start, stop, body):
                for count in range(int(self.value(start, names)), int(self.value(stop, names))):
                    # A block has its own names; updates reach the accumulators of outer blocks.
                    inner = _Scope(names)
                    inner[counter] = np.int64(count)
                    self.block(body, inner)
            case Accumulator(name, value, per) if per:
                self.arrays[name] = tuple(counter for counter, _ in per)
                self.elements[self.key(name, names)] = self.value(value, names)
            case Update(name, operator, value) if name in self.arrays:
                old = self.elements[self.key(name, names)]
                new = self.combined(operator, old, self.value(value, names), value.dtype)
                self.elements[self.key(name, names)] = new
            case Assign(name, value) | Accumulator(name, value):
                dict.__setitem__(names, name, self.value(value, names))
            case Update(name, operator, value):
                new = self.combined(operator, names[name], self.value(value, names), value.dtype)
                names[name] = new
            case TeamMemory(name, _, count):
                self.team[name] = [None] * count
            case Store(buffer, offset, value) if buffer in self.team:
                element = self.team_element(buffer, offset, names)
                self.team[buffer][element] = self.value(value, names)
            case Store(buffer, offset, value):
                element = _element(self.value(offset, names))
                self.buffers[buffer][element] = _item(self.value(value, names))
            case Merge(buffer, offset, operator, value):
                element = _element(self.value(offset, names))
                old = _scalar(self.buffers[buffer][element].item(), value.dtype)
                new = self.combined(operator, old, self.value(value, names), value.dtype)
                self.buffers[buffer][element] = _item(new)
            case _:
                assert_never(statement)

    def team_element(self, memory: str, offset: Expression, names: dict[str, Scalar]) -> int:
        """The offset of an element of team memory, checked."""
        element, count = int(self.value(offset, names)), len(self.team[memory])
        assert 0 <= element < count, f"{memory} has {count} elements, not one at {element}"
        return element

    def key(self, name: str, names: dict[str, Scalar]) -> tuple[str, tuple[int, ...]]:
        return name, tuple(int(names[counter]) for counter in self.arrays[name])

    def combined(self, operator: str, old: Scalar, new: Scalar, dtype: torch.dtype) -> Scalar:
        return _rounded(OPERATORS[operator].meaning(old, new), dtype)

    def value(self, expression: Expression, names: dict[str, Scalar]) -> Scalar:
        match expression:
            case Constant(value, dtype):
                return _scalar(value, dtype)
            case Extent(name):
                return np.int64(self.extents[name])
            case Name(name) if name in self.arrays:
                return self.elements[self.key(name, names)]
            case Counter(name) | Name(name):
                return names[name]
            case Load(buffer, offset) if buffer in self.team:
                stored = self.team[buffer][self.team_element(buffer, offset, names)]
                assert stored is not None, f"nothing was stored in {buffer}"
                return stored
            case Load(buffer, offset, dtype):
                element = self.buffers[buffer][_element(self.value(offset, names))]
                return _scalar(element.item(), dtype)
            case Cast(arg, dtype):
                return _converted(self.value(arg, names), arg.dtype, dtype)
            case Guarded(condition, value, otherwise):
                return self.value(value if self.value(condition, names) else otherwise, names)
            case Apply(operator, args, dtype):
                values = [self.value(arg, names) for arg in args]
                return _rounded(OPERATORS[operator].meaning(*values), dtype)
            case _:
                assert_never(expression)


class _Scope(dict[str, Scalar]):
    """The names of a block; others are looked up, and updated, in the enclosing block."""

    def __init__(self, outer: dict[str, Scalar]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, name: str) -> Scalar:
        return self.outer[name]

    def __setitem__(self, name: str, value: Scalar) -> None:
        if name not in self and (name in self.outer or isinstance(self.outer, _Scope)):
            try:
                self.outer[name]
            except KeyError:
                super().__setitem__(name, value)
            else:
                self.outer[name] = value
        else:
            super().__setitem__(name, value)


def _element(offset: SupportsInt) -> int:
    """An offset in a buffer.  A negative one would count from the end, as indices of tensors do."""
    element = int(offset)
    assert element >= 0, f"a buffer has no element at {element}"
    return element


def _item(value: Scalar) -> Scalar:
    return value.item() if isinstance(value, np.generic) else value


def _scalar(value: Scalar, dtype: torch.dtype) -> Scalar:
    return _rounded(_SCALARS[dtype](value), dtype)


def _rounded(value: Scalar, dtype: torch.dtype) -> Scalar:
    if dtype in HALVES:
        return np.float32(torch.tensor(float(value), device="cpu").to(dtype).item())
    return value if isinstance(value, _SCALARS[dtype]) else _SCALARS[dtype](value)


def _converted(value: Scalar, before: torch.dtype, after: torch.dtype) -> Scalar:
    tensor = torch.tensor(_item(value), dtype=before, device="cpu")
    return _scalar(tensor.to(after).item(), after)
