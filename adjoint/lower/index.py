"""Index arithmetic: linear combinations of axes, simplified as they are built.

An axis counts from 0 to its extent.  What is not linear in axes - a quotient, a remainder, an index
loaded from memory - is an atom, which remains only where it cannot be simplified.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from typing_extensions import assert_never

from adjoint.loops.expressions import Expression
from adjoint.lower.sizes import Size, is_below, is_one, product, quotient, simplified
from adjoint.torch_private.symbols import same_number


@dataclass(frozen=True)
class Axis:
    name: str
    extent: Size


@dataclass(frozen=True)
class Quotient:
    of: Index
    by: Size


@dataclass(frozen=True)
class Remainder:
    of: Index
    by: Size


@dataclass(frozen=True)
class Gathered:
    """An index that is loaded from memory, and must be in range(size)."""

    value: Expression
    size: Size


Atom: TypeAlias = Axis | Quotient | Remainder | Gathered


@dataclass(frozen=True)
class Index:
    """terms[0][0] * terms[0][1] + ... + constant"""

    terms: tuple[tuple[Atom, Size], ...] = ()
    constant: Size = 0

    def __add__(self, other: Index | Size) -> Index:
        if not isinstance(other, Index):
            return Index(self.terms, simplified(self.constant + other))
        return combined((*self.terms, *other.terms), simplified(self.constant + other.constant))

    def __mul__(self, by: Size) -> Index:
        if isinstance(by, int) and by == 0:
            return Index()
        if is_one(by):
            return self
        terms = tuple((atom, simplified(coefficient * by)) for atom, coefficient in self.terms)
        return Index(terms, simplified(self.constant * by))

    def __floordiv__(self, by: Size) -> Index:
        whole, rest = self._split(by)
        if not rest.terms and rest.constant == 0:
            return whole
        if rest.is_within(by):
            return whole
        return whole + Index(((Quotient(rest, by), 1),))

    def __mod__(self, by: Size) -> Index:
        _, rest = self._split(by)
        if rest.is_within(by):
            return rest
        return Index(((Remainder(rest, by), 1),))

    def _split(self, by: Size) -> tuple[Index, Index]:
        """(a, b) with a * by + b = self."""
        if isinstance(by, int) and by == 0:
            return Index(), self  # The tensor has no elements.
        whole: list[tuple[Atom, Size]] = []
        rest: list[tuple[Atom, Size]] = []
        for atom, coefficient in self.terms:
            times = quotient(coefficient, by)
            if times is None:
                rest.append((atom, coefficient))
            else:
                whole.append((atom, times))
        times = quotient(self.constant, by)
        if times is not None:
            return Index(tuple(whole), times), Index(tuple(rest), 0)
        if isinstance(self.constant, int) and isinstance(by, int):
            return Index(tuple(whole), self.constant // by), Index(tuple(rest), self.constant % by)
        return Index(tuple(whole), 0), Index(tuple(rest), self.constant)

    def is_within(self, bound: Size) -> bool:
        """Whether 0 <= self < bound can be proved."""
        if not isinstance(self.constant, int) or self.constant < 0:
            return False
        highest: Size = self.constant
        for atom, coefficient in self.terms:
            if isinstance(coefficient, int) and coefficient < 0:
                return False
            if isinstance(atom, Axis):
                last: Size = atom.extent - 1
            elif isinstance(atom, Remainder):
                last = atom.by - 1
            else:
                return False
            highest = highest + coefficient * last
        return is_below(simplified(highest), bound)

    def replaced(self, axes: Mapping[Axis, Index]) -> Index:
        """The index with other indices substituted for axes."""
        total = Index((), self.constant)
        for atom, coefficient in self.terms:
            total = total + _replaced(atom, axes) * coefficient
        return total

    def axes(self) -> Iterable[Axis]:
        for atom, _ in self.terms:
            if isinstance(atom, Axis):
                yield atom
            elif isinstance(atom, Quotient | Remainder):
                yield from atom.of.axes()

    def coefficient(self, axis: Axis) -> Size:
        return next((c for atom, c in self.terms if atom == axis), 0)


def _replaced(atom: Atom, axes: Mapping[Axis, Index]) -> Index:
    match atom:
        case Axis():
            return axes.get(atom, of_axis(atom))
        case Quotient(of, by):
            return of.replaced(axes) // by
        case Remainder(of, by):
            return of.replaced(axes) % by
        case Gathered():
            return Index(((atom, 1),))
        case _:
            assert_never(atom)


def combined(terms: Iterable[tuple[Atom, Size]], constant: Size) -> Index:
    """The sum of terms, in which (x // n) * n + x % n is simplified to x."""
    summed: dict[Atom, Size] = {}
    for atom, coefficient in terms:
        summed[atom] = simplified(summed.get(atom, 0) + coefficient)
    kept = {atom: c for atom, c in summed.items() if not (isinstance(c, int) and c == 0)}
    for atom, coefficient in list(kept.items()):
        if isinstance(atom, Remainder):
            for partner in _partners(atom):
                if partner in kept and same_number(kept[partner], coefficient * atom.by):
                    del kept[atom], kept[partner]
                    rest = atom.of * coefficient
                    whole = simplified(constant + rest.constant)
                    return combined((*kept.items(), *rest.terms), whole)
    return Index(tuple(kept.items()), constant)


def _partners(rest: Remainder) -> Iterable[Quotient]:
    """The quotient that belongs to a remainder, in the forms it may have."""
    yield Quotient(rest.of, rest.by)
    match rest.of:
        case Index(((Quotient(of, by), 1),), 0):
            yield Quotient(of, simplified(by * rest.by))
        case Index():
            return


def of_axis(axis: Axis) -> Index:
    return Index() if is_one(axis.extent) else Index(((axis, 1),))


def linear(index: Sequence[Index], strides: Sequence[Size], offset: Size = 0) -> Index:
    """The offset in memory of the element at `index`."""
    terms: list[tuple[Atom, Size]] = []
    constant = offset
    for each, stride in zip(index, strides, strict=True):
        part = each * stride
        terms += part.terms
        constant = constant + part.constant
    return combined(terms, simplified(constant))


def row_major(shape: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a contiguous tensor."""
    return tuple(product(shape[dim + 1 :]) for dim in range(len(shape)))


def reshaped(
    index: Sequence[Index], shape: Sequence[Size], into: Sequence[Size]
) -> tuple[Index, ...]:
    """The index into a contiguous tensor of sizes `into` of the element at `index` of `shape`.

    Runs of dimensions with equal products are converted separately, so that there are as few
    divisions as possible.
    """
    result: list[Index] = []
    here, there = list(shape), list(into)
    at, to = 0, 0
    while to < len(there) or at < len(here):
        first_at, first_to = at, to
        left: Size = 1
        right: Size = 1
        if at < len(here):
            left, at = here[at], at + 1
        if to < len(there):
            right, to = there[to], to + 1
        while not same_number(left, right):
            grows_left = _smaller(left, right)
            if (grows_left and at < len(here)) or to == len(there):
                if at == len(here):
                    break
                left, at = simplified(left * here[at]), at + 1
            else:
                right, to = simplified(right * there[to]), to + 1
        run = linear(index[first_at:at], row_major(here[first_at:at]))
        result += unravelled(run, there[first_to:to])
    return tuple(result)


def _smaller(one: Size, other: Size) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one < other
    # One that divides the other is smaller; otherwise either may grow.
    return quotient(other, one) is not None


def unravelled(run: Index, shape: Sequence[Size]) -> list[Index]:
    """The offset in a contiguous tensor, as one index for each dimension."""
    result: list[Index] = []
    for dim, size in enumerate(shape):
        inner = product(shape[dim + 1 :])
        part = run // inner
        result.append(Index() if is_one(size) else part if dim == 0 else part % size)
    return result


def refined(one: Sequence[Size], other: Sequence[Size]) -> tuple[Size, ...] | None:
    """The coarsest sizes from which both follow by merging adjacent dimensions, or None."""
    left = [size for size in reversed(one) if not is_one(size)]
    right = [size for size in reversed(other) if not is_one(size)]
    common: list[Size] = []
    while left and right:
        a, b = left.pop(0), right.pop(0)
        if same_number(a, b):
            common.append(a)
            continue
        if (rest := quotient(a, b)) is not None:
            common.append(b)
            left.insert(0, rest)
        elif (rest := quotient(b, a)) is not None:
            common.append(a)
            right.insert(0, rest)
        else:
            return None
    if left or right:
        return None
    return tuple(reversed(common))


def leading(shape: Sequence[Size], rows: Size) -> int | None:
    """How many leading dimensions have `rows` elements together; None if no number has."""
    for count in range(1, len(shape) + 1):
        if same_number(product(shape[:count]), rows):
            return count
    return None
