"""Elements of matrices on their way from global to shared memory, for the tile of a product.

A thread moves quads, four adjacent elements at a time.  All loads of a k-step are issued before
anything is computed from them, so that they are in flight together.  Shared memory is ordered
by k: the rows of the left matrix, or the columns of the right one, are adjacent for each k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from adjoint.emit.arithmetic import Callees
from adjoint.emit.teams import TeamBody
from adjoint.loops.expressions import Apply, Expression, Guarded, Load, children
from adjoint.loops.statements import Accumulator, Assign, Kernel, Loop, Statement, Update
from adjoint.loops.teams import QUAD, Tile
from adjoint.target import Target

# Elements between two rows of a tile in shared memory, to avoid bank conflicts.
PADDING_ELEMENTS = 4


@dataclass(frozen=True)
class ProductNest:
    """The loops of a product, matched: for each row and column, a sum over k."""

    rows: Loop
    assigned: tuple[Assign, ...]
    """Names assigned for each row, such as its indices."""
    columns: tuple[Loop, Loop]
    """Over quads of columns, and in each quad."""
    total: Accumulator
    inner: tuple[Loop, Loop]
    """Over quads of k, and in each quad."""
    left: Expression
    right: Expression
    epilogue: tuple[Statement, ...]
    """What is computed from the sum, and stored."""


def product_nest(rows: Loop) -> ProductNest:
    *assigned, quads = rows.body
    assert isinstance(quads, Loop)
    (four,) = quads.body
    assert isinstance(four, Loop)
    total, inner, *epilogue = four.body
    assert isinstance(total, Accumulator)
    assert isinstance(inner, Loop)
    (inner_four,) = inner.body
    assert isinstance(inner_four, Loop)
    (update,) = inner_four.body
    assert isinstance(update, Update)
    assert isinstance(update.value, Apply)
    left, right = update.value.args
    return ProductNest(
        rows,
        tuple(each for each in assigned if isinstance(each, Assign)),
        (quads, four),
        total,
        (inner, inner_four),
        left,
        right,
        tuple(epilogue),
    )


@dataclass
class Element:
    """One of four adjacent elements: registers of names, of expressions, and of loads."""

    names: dict[str, str]
    scope: dict[int, str] = field(default_factory=dict)
    registers: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Quad:
    """Four adjacent elements of a matrix that this thread moves to shared memory."""

    expression: Expression
    counter: str
    """The loop whose four iterations they are."""
    elements: list[Element]
    is_there: str | None
    """The register of whether they exist; None: they always do."""
    target: str
    """The offset of the first in shared memory."""
    step: int
    """From one to the next, in shared memory."""


# The registers of a row's or column's indices.  Those of a quad's first element lack the index
# within the quad.
Indices: TypeAlias = Callable[[str, bool], dict[str, str]]


@dataclass(frozen=True)
class Matrix:
    """One of the two matrices, as far as the tile needs it."""

    expression: Expression
    k_contiguous: bool
    """Elements that are adjacent in memory differ in k."""
    extent: int
    """Rows or columns of the tile."""
    origin: str
    """The first row or column of the tile."""
    limit: str
    """The number of rows or columns of the matrix."""
    begin: int
    """The offset of its part of shared memory."""
    indices: Indices
    counter: str
    """The loop whose iterations are adjacent elements."""

    @property
    def step(self) -> int:
        """From one k to the next, in shared memory."""
        return self.extent + PADDING_ELEMENTS


class StagingBody(TeamBody):
    def __init__(self, kernel: Kernel, callees: Callees, target: Target) -> None:
        super().__init__(kernel, callees, target)
        assert kernel.tile is not None
        self.tile: Tile = kernel.tile
        (rows,) = kernel.body
        assert isinstance(rows, Loop)
        self.product = product_nest(rows)
        self.half = self.tile.depth * (self.tile.rows + self.tile.columns + 2 * PADDING_ELEMENTS)
        """Shared memory has two halves: one is read while the other is filled."""
        self.memory = f"@{kernel.name}.tile"
        kind = f"[{2 * self.half} x float]"
        self.globals.append(f"{self.memory} = internal addrspace(3) global {kind} undef, align 16")

    def number(self, operator: str, left: object, right: object) -> str:
        """Arithmetic of indices: not negative, and no overflow."""
        flags = " nuw nsw" if operator in ("add", "mul") else ""
        return self.line(f"{operator}{flags} i64 {left}, {right}")

    def least(self, left: str, right: str) -> str:
        self.callees.intrinsics.add("declare i64 @llvm.umin.i64(i64, i64)")
        return self.line(f"call i64 @llvm.umin.i64(i64 {left}, i64 {right})")

    @contextmanager
    def at(self, element: Element, counter: str) -> Iterator[None]:
        """Lines for one of four adjacent elements; `counter`: the loop they are iterations of."""
        before, self.registers = self.registers, element.registers
        self.scopes.append(element.scope)
        self.names.append(element.names)
        self.iterations[counter] = element.names[counter]
        yield
        del self.iterations[counter]
        self.names.pop()
        self.scopes.pop()
        self.registers = before

    # Quads

    def quads(self, matrices: Sequence[Matrix], k_step: str, depth: int) -> list[Quad]:
        """What this thread moves for a step of the loop over k; `depth`: the extent of k."""
        return [
            self.quad(matrix, k_step, which, depth)
            for matrix in matrices
            for which in range(-(-matrix.extent * self.tile.depth // QUAD // self.team))
        ]

    def quad(self, matrix: Matrix, k_step: str, which: int, depth: int) -> Quad:
        count = matrix.extent * self.tile.depth // QUAD
        number = self.number("add", "%thread", which * self.team)
        if (which + 1) * self.team > count:
            # There are fewer quads than threads: several threads move the same.
            number = self.number("urem", number, count)
        if matrix.k_contiguous:
            k, place = self.place_k_contiguous(matrix, number)
        else:
            k, place = self.place(matrix, number)
        target = self.number("add", self.number("mul", k, matrix.step), place)
        names, is_there = self.k_indices(matrix, k_step, k, depth)
        place = self.number("add", matrix.origin, place)
        last = self.number("sub", matrix.limit, 1 if matrix.k_contiguous else QUAD)
        place = self.least(place, last)
        names |= matrix.indices(place, not matrix.k_contiguous)
        return Quad(
            matrix.expression,
            matrix.counter,
            [Element({**names, matrix.counter: str(n)}) for n in range(QUAD)],
            is_there,
            self.number("add", target, matrix.begin),
            matrix.step if matrix.k_contiguous else 1,
        )

    def place(self, matrix: Matrix, number: str) -> tuple[str, str]:
        """The k of a quad, and its first row or column in the tile."""
        wide = matrix.extent // QUAD
        place = self.number("mul", self.number("urem", number, wide), QUAD)
        return self.number("udiv", number, wide), place

    def place_k_contiguous(self, matrix: Matrix, number: str) -> tuple[str, str]:
        """The first k of a quad, and its row or column in the tile.

        Adjacent threads have two quads of one row, then two of the next, so that their stores to
        shared memory fall into different banks.
        """
        pair, low = self.number("udiv", number, 2), self.number("urem", number, 2)
        place = self.number("urem", pair, matrix.extent)
        high = self.number("udiv", pair, matrix.extent)
        quad = self.number("add", self.number("mul", high, 2), low)
        return self.number("mul", quad, QUAD), place

    def k_indices(
        self, matrix: Matrix, k_step: str, k: str, depth: int
    ) -> tuple[dict[str, str], str | None]:
        """The registers of the indices along k, and that of whether k is below its extent."""
        quads, four = self.product.inner
        whole = self.number("mul", k_step, self.tile.depth // QUAD)
        quad = self.number("add", whole, self.number("udiv", k, QUAD))
        is_there = None
        if depth % self.tile.depth:
            is_there = self.line(f"icmp ult i64 {quad}, {depth // QUAD}")
            quad = self.least(quad, str(depth // QUAD - 1))
        names = {quads.counter: quad}
        if not matrix.k_contiguous:
            names[four.counter] = self.number("urem", k, QUAD)
        return names, is_there

    # Loads and stores

    def load_quads(self, quads: Sequence[Quad]) -> None:
        """Issue all loads from global memory that the quads need."""
        for quad in quads:
            for element in quad.elements:
                with self.at(element, quad.counter):
                    for assign in self.product.assigned:
                        if self.is_known(assign.value):
                            self.statement(assign)
                    self.issue_loads(quad.expression)

    def issue_loads(self, expression: Expression) -> None:
        """The unconditional loads of an expression, as far as their addresses are known."""
        match expression:
            case Guarded(condition):
                self.issue_loads(condition)
            case Load():
                if self.is_known(expression):
                    self.value(expression)
            case _:
                for child in children(expression):
                    self.issue_loads(child)

    def store_quads(self, quads: Sequence[Quad], half: str) -> None:
        """Compute the elements and store them in a half of shared memory."""
        for quad in quads:
            values: list[str] = []
            for element in quad.elements:
                with self.at(element, quad.counter):
                    values.append(self.value(quad.expression))
            if quad.is_there is not None:
                values = [
                    self.line(f"select i1 {quad.is_there}, float {value}, float 0.0")
                    for value in values
                ]
            first = self.shared(self.number("add", quad.target, half))
            if quad.step == 1:
                self.store_vector(first, values)
                continue
            for n, value in enumerate(values):
                target = self.shared_from(first, n * quad.step)
                self.lines.append(f"  store float {value}, ptr addrspace(3) {target}, align 4")

    def shared(self, offset: str) -> str:
        """The address of an element of shared memory."""
        return self.line(f"getelementptr float, ptr addrspace(3) {self.memory}, i64 {offset}")

    def shared_from(self, first: str, offset: int) -> str:
        return self.line(f"getelementptr float, ptr addrspace(3) {first}, i64 {offset}")

    def store_vector(self, target: str, values: Sequence[str]) -> None:
        packed = "undef"
        for n, value in enumerate(values):
            packed = self.line(f"insertelement <{QUAD} x float> {packed}, float {value}, i32 {n}")
        kind = f"<{QUAD} x float>"
        self.lines.append(f"  store {kind} {packed}, ptr addrspace(3) {target}, align 16")
