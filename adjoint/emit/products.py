"""Matrix products for the GPU as LLVM IR: tiles in shared memory, register tiling, fused epilogue.

The loops of the kernel say what is computed; `kernel.tile` says how.  A team computes one tile of
the product.  Each thread accumulates some quads of rows times some quads of columns in registers,
with double buffering:

    load and store the first k-step              -> first half of shared memory
    for each following k-step:
        issue its loads from global memory       (in flight during the multiplications)
        multiply and accumulate the previous k-step
        compute and store its elements           -> the other half of shared memory
    multiply and accumulate the last k-step
    compute and store the epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from adjoint.emit.staging import PADDING_ELEMENTS, Element, Matrix, StagingBody
from adjoint.loops.statements import Assign, Loop, Merge, Store, expressions
from adjoint.loops.teams import QUAD, WARP, WARP_COLUMNS, WARP_ROWS

# Unrolled multiplications of the innermost loop: more would compile slowly.
UNROLLED_FMAS = 128

# Quads of results whose loads are issued ahead of the stores of earlier ones.
PREFETCHED_QUADS = 2


@dataclass(frozen=True)
class _Result:
    """Four adjacent sums of this thread."""

    elements: list[Element]
    is_there: str | None
    """The register of whether they exist; None: they always do."""


class ProductBody(StagingBody):
    def parallel(self, loop: Loop) -> None:
        # No store outside of the tile's loops is left to the first lane.
        self.is_divided = True
        self.lines += [
            "  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
            "  %ctaid = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
            "  %g = zext i32 %ctaid to i64",
            "  %thread = zext i32 %tid to i64",
        ]
        self.scopes.append({})
        self.names.append({})
        self._locate_tile()
        self._locate_thread()
        self._sum()
        self._epilogue()

    # Places

    def _locate_tile(self) -> None:
        """The first row and column of the tile."""
        tile, product = self.tile, self.product
        self.rows = self.value(product.rows.stop)
        self.columns = int(self.value(product.columns[0].stop)) * QUAD
        self.depth = int(self.value(product.inner[0].stop)) * QUAD
        wide = -(-self.columns // tile.columns)
        self.row = self.number("mul", self.number("udiv", "%g", wide), tile.rows)
        self.column = self.number("mul", self.number("urem", "%g", wide), tile.columns)

    def _locate_thread(self) -> None:
        """The first row and column of this thread, in the tile."""
        rows, columns = self.tile.per_thread
        _, wide = self.tile.warps
        warp, lane = (
            self.number("udiv", "%thread", WARP),
            self.number("urem", "%thread", WARP),
        )
        # The eight threads of a memory transaction touch two quads of rows and four of columns.
        pair = 2 * WARP_COLUMNS
        half, rest = self.number("udiv", lane, pair), self.number("urem", lane, pair)
        down = self.number("add", self.number("mul", half, 2), self.number("urem", rest, 2))
        across = self.number("udiv", rest, 2)
        self.own_row = self.number(
            "add",
            self.number("mul", self.number("udiv", warp, wide), WARP_ROWS * rows),
            self.number("mul", down, QUAD),
        )
        self.own_column = self.number(
            "add",
            self.number("mul", self.number("urem", warp, wide), WARP_COLUMNS * columns),
            self.number("mul", across, QUAD),
        )

    def _row_indices(self, row: str, begins: bool) -> dict[str, str]:
        return {self.product.rows.counter: row}

    def _column_indices(self, column: str, begins: bool) -> dict[str, str]:
        quads, four = self.product.columns
        names = {quads.counter: self.number("udiv", column, QUAD)}
        return names if begins else {**names, four.counter: self.number("urem", column, QUAD)}

    # The sum

    def _sum(self) -> None:
        rows, columns = self.tile.per_thread
        self.totals = [f"%total.{n}" for n in range(rows * columns)]
        self.allocas += [f"  {total} = alloca float" for total in self.totals]
        start = self.value(self.product.total.value)
        self.lines += [f"  store float {start}, ptr {total}" for total in self.totals]
        self.matrices = self._left(), self._right()
        steps = -(-self.depth // self.tile.depth)
        quads = self.quads(self.matrices, "0", self.depth)
        self.load_quads(quads)
        self.store_quads(quads, "0")
        self.lines.append("  call void @llvm.nvvm.barrier0()")
        if steps > 1:
            self.lines += [
                "  br label %sum.from",
                "sum.from:",
                "  br label %sum",
                "sum:",
                "  %turn = phi i64 [ 0, %sum.from ], [ %turn.next, %sum.to ]",
                "  %turn.next = add nuw nsw i64 %turn, 1",
            ]
            quads = self.quads(self.matrices, "%turn.next", self.depth)
            self.load_quads(quads)
            self._multiply(self._half("%turn"))
            self.store_quads(quads, self._half("%turn.next"))
            self.lines += [
                "  call void @llvm.nvvm.barrier0()",
                f"  %more = icmp ult i64 %turn.next, {steps - 1}",
                "  br label %sum.to",
                "sum.to:",
                "  br i1 %more, label %sum, label %sum.end",
                "sum.end:",
            ]
        self._multiply(self._half(str(steps - 1)))

    def _left(self) -> Matrix:
        return Matrix(
            self.product.left,
            k_contiguous=True,
            extent=self.tile.rows,
            origin=self.row,
            limit=self.rows,
            begin=0,
            indices=self._row_indices,
            counter=self.product.inner[1].counter,
        )

    def _right(self) -> Matrix:
        tile, product = self.tile, self.product
        along = product.inner if tile.k_contiguous else product.columns
        return Matrix(
            product.right,
            k_contiguous=tile.k_contiguous,
            extent=tile.columns,
            origin=self.column,
            limit=str(self.columns),
            begin=tile.depth * (tile.rows + PADDING_ELEMENTS),
            indices=self._column_indices,
            counter=along[1].counter,
        )

    def _half(self, k_step: str) -> str:
        """The offset of the half of shared memory that a k-step uses."""
        return self.number("mul", self.line(f"and i64 {k_step}, 1"), self.half)

    def _multiply(self, half: str) -> None:
        """Accumulate the products of one k-step."""
        rows, columns = self.tile.per_thread
        left, right = self.matrices
        self.callees.intrinsics.add("declare float @llvm.fma.f32(float, float, float)")
        unrolled = UNROLLED_FMAS // (rows * columns)
        label = self.label("deep")
        self.lines += [
            f"  br label %{label}.from",
            f"{label}.from:",
            f"  br label %{label}",
            f"{label}:",
            f"  %{label}.turn = phi i64 [ 0, %{label}.from ], [ %{label}.next, %{label} ]",
            f"  %{label}.next = add nuw nsw i64 %{label}.turn, {unrolled}",
        ]
        totals = [self.line(f"load float, ptr {total}") for total in self.totals]
        starts: list[str] = []
        for matrix, own in ((left, self.own_row), (right, self.own_column)):
            first = self.number("add", self.number("add", half, matrix.begin), own)
            deep = self.number("mul", f"%{label}.turn", matrix.step)
            starts.append(self.shared(self.number("add", first, deep)))
        for k in range(unrolled):
            ours = self._fragment(starts[0], k * left.step, rows, WARP_ROWS)
            theirs = self._fragment(starts[1], k * right.step, columns, WARP_COLUMNS)
            pairs = [(x, y) for x in ours for y in theirs]
            totals = [
                self.line(f"call float @llvm.fma.f32(float {x}, float {y}, float {total})")
                for (x, y), total in zip(pairs, totals, strict=True)
            ]
        for address, total in zip(self.totals, totals, strict=True):
            self.lines.append(f"  store float {total}, ptr {address}")
        self.lines += [
            f"  %{label}.more = icmp ult i64 %{label}.next, {self.tile.depth}",
            f"  br i1 %{label}.more, label %{label}, label %{label}.end",
            f"{label}.end:",
        ]

    def _fragment(self, first: str, offset: int, count: int, threads: int) -> list[str]:
        """The elements this thread multiplies: quads, interleaved with those of other threads."""
        found: list[str] = []
        for quad in range(count // QUAD):
            address = self.shared_from(first, offset + quad * threads * QUAD)
            packed = self.line(f"load <{QUAD} x float>, ptr addrspace(3) {address}, align 16")
            found += [
                self.line(f"extractelement <{QUAD} x float> {packed}, i32 {n}") for n in range(QUAD)
            ]
        return found

    # The epilogue

    def _epilogue(self) -> None:
        """Quad by quad; the loads of the next batch are issued before a batch is stored."""
        results = self._results()
        batches = [
            results[n : n + PREFETCHED_QUADS] for n in range(0, len(results), PREFETCHED_QUADS)
        ]
        self._load_batch(batches[0])
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            self._load_batch(following)
            for result in batch:
                self._store_result(result)

    def _results(self) -> list[_Result]:
        rows, columns = self.tile.per_thread
        sums = [self.line(f"load float, ptr {total}") for total in self.totals]
        first_row = self.number("add", self.row, self.own_row)
        first_column = self.number("add", self.column, self.own_column)
        results: list[_Result] = []
        for row in range(rows):
            apart = WARP_ROWS * QUAD * (row // QUAD) + row % QUAD
            at_row = self.number("add", first_row, apart)
            for quad in range(columns // QUAD):
                at_column = self.number("add", first_column, WARP_COLUMNS * QUAD * quad)
                begin = row * columns + quad * QUAD
                results.append(self._result(at_row, at_column, sums[begin : begin + QUAD]))
        return results

    def _result(self, row: str, column: str, sums: Sequence[str]) -> _Result:
        checks: list[str] = []
        if not self.rows.isdigit() or int(self.rows) % self.tile.rows:
            checks.append(self.line(f"icmp ult i64 {row}, {self.rows}"))
            row = self.least(row, self.number("sub", self.rows, 1))
        if self.columns % self.tile.columns:
            checks.append(self.line(f"icmp ult i64 {column}, {self.columns}"))
            column = self.least(column, str(self.columns - QUAD))
        is_there = checks[0] if checks else None
        if len(checks) == 2:
            is_there = self.line(f"and i1 {checks[0]}, {checks[1]}")
        names = {**self._row_indices(row, True), **self._column_indices(column, True)}
        four, total = self.product.columns[-1].counter, self.product.total.name
        elements = [Element({**names, four: str(n), total: sum_}) for n, sum_ in enumerate(sums)]
        return _Result(elements, is_there)

    def _load_batch(self, results: Sequence[_Result]) -> None:
        """Issue all loads of the epilogue whose addresses are known."""
        for element in (element for result in results for element in result.elements):
            with self.at(element, self.product.columns[-1].counter):
                for assign in self.product.assigned:
                    self.statement(assign)
                for statement in self.product.epilogue:
                    for expression in expressions(statement):
                        self.issue_loads(expression)

    def _store_result(self, result: _Result) -> None:
        four = self.product.columns[-1]
        stores: dict[int, list[tuple[str, str, torch.dtype]]] = {}
        merges = [each for each in self.product.epilogue if isinstance(each, Merge)]
        for element in result.elements:
            with self.at(element, four.counter):
                for number, statement in enumerate(self.product.epilogue):
                    if isinstance(statement, Merge):
                        # Computed before the branch, like everything that may be used after it.
                        self.value(statement.value)
                    elif isinstance(statement, Store):
                        dtype = statement.value.dtype
                        address = self.element(statement.buffer, statement.offset, dtype)
                        store = (address, self.value(statement.value), dtype)
                        stores.setdefault(number, []).append(store)
                    else:
                        assert isinstance(statement, Assign)
                        self.statement(statement)
        label = self.label("sums")
        is_there = result.is_there
        with nullcontext() if is_there is None else self.only_if(is_there, label):
            for store in (store for adjacent in stores.values() for store in adjacent):
                self.store(*store)
            for element in result.elements if merges else ():
                with self.at(element, four.counter):
                    self.unrolled = four
                    for merge in merges:
                        self.atomic(merge)
                    self.unrolled = None
