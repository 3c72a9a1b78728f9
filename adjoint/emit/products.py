"""Matrix products for the GPU, as LLVM IR text.

The loops of the kernel say what is computed; the tile says how.  A team computes a tile of the
product, each thread some quads of rows times some quads of columns of it, in registers:

    what the first few of the sum need           -> memory that the team shares
    for the next few, and the next:
        their elements are read                  (and arrive meanwhile)
        those at hand are multiplied and added
        what was read is computed with           -> the other half of that memory
    the last are multiplied and added
    what is made of the sums is stored

Elements lie in shared memory by what is summed over: quads of rows, or of columns, side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from adjoint.emit.body import Wanted
from adjoint.emit.teams import TeamBody
from adjoint.loops.expressions import Apply, Expression, Guarded, Load, children
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Kernel,
    Loop,
    Merge,
    Statement,
    Store,
    Update,
    expressions,
)
from adjoint.loops.teams import HEIGHT, QUAD, WARP, WIDTH, Tile

# So that quads of neighbouring rows are not in the same bank of memory.
PADDING = 4

# Multiplications of the innermost loop that are written out: all would take long to compile.
AT_ONCE = 128

# Quads of results for which memory is asked at a time.
AHEAD = 2


@dataclass(frozen=True)
class _Parts:
    """The loops of a product, taken apart."""

    rows: Loop
    assigned: tuple[Assign, ...]
    """What rows are, as far as that is not their number."""
    columns: tuple[Loop, Loop]
    """Over quads of columns, and in each quad."""
    total: Accumulator
    inner: tuple[Loop, Loop]
    left: Expression
    right: Expression
    after: tuple[Statement, ...]


def _parts(rows: Loop) -> _Parts:
    *assigned, quads = rows.body
    assert isinstance(quads, Loop)
    (four,) = quads.body
    assert isinstance(four, Loop)
    total, inner, *after = four.body
    assert isinstance(total, Accumulator)
    assert isinstance(inner, Loop)
    (inner_four,) = inner.body
    assert isinstance(inner_four, Loop)
    (update,) = inner_four.body
    assert isinstance(update, Update)
    assert isinstance(update.value, Apply)
    left, right = update.value.args
    names = tuple(each for each in assigned if isinstance(each, Assign))
    return _Parts(rows, names, (quads, four), total, (inner, inner_four), left, right, tuple(after))


@dataclass
class _Place:
    """What is known where one of some neighbours is computed."""

    names: dict[str, str]
    scope: dict[int, str] = field(default_factory=dict)
    held: dict[tuple[object, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Quad:
    """Four neighbours of a matrix that this thread brings to shared memory."""

    expression: Expression
    turn: str
    """The loop that they are turns of."""
    places: list[_Place]
    is_there: str | None
    """None: they always are."""
    goal: str
    """Where the first goes."""
    step: int
    """How far apart they go."""


@dataclass(frozen=True)
class _Result:
    """Four neighbours of what the thread has summed."""

    places: list[_Place]
    is_there: str | None
    """None: they always are."""


# Names for a row or a column; without that of its place in the quad, if it begins one.
Naming: TypeAlias = Callable[[str, bool], dict[str, str]]


@dataclass(frozen=True)
class _Side:
    """One of the matrices, as far as the tile needs it."""

    expression: Expression
    along: bool
    """Neighbours lie along what is summed over."""
    extent: int
    """Rows or columns of the tile."""
    origin: str
    limit: str
    begin: int
    """Where in shared memory."""
    naming: Naming
    turn: str
    """The loop whose turns are neighbours."""

    @property
    def step(self) -> int:
        return self.extent + PADDING


class ProductBody(TeamBody):
    def __init__(self, kernel: Kernel, wanted: Wanted, wide: bool) -> None:
        super().__init__(kernel, wanted, wide)
        assert kernel.tile is not None
        self.tile: Tile = kernel.tile
        self.half = self.tile.depth * (self.tile.rows + self.tile.columns + 2 * PADDING)
        self.memory = f"@{kernel.name}.tile"
        kind = f"[{2 * self.half} x float]"
        self.globals.append(f"{self.memory} = internal addrspace(3) global {kind} undef, align 16")

    def parallel(self, loop: Loop) -> None:
        self.parts = _parts(loop)
        # Whatever stands outside of the tile's loops is for this thread alone.
        self.sharing = True
        self.lines += [
            "  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()",
            "  %ctaid = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.x()",
            "  %g = zext i32 %ctaid to i64",
            "  %thread = zext i32 %tid to i64",
        ]
        self.scopes.append({})
        self.names.append({})
        self._find_tile()
        self._find_own()
        self._sum()
        self._finish()

    # Places

    def number(self, operator: str, left: object, right: object) -> str:
        """Of what is not negative and far from too large."""
        flags = " nuw nsw" if operator in ("add", "mul") else ""
        return self.line(f"{operator}{flags} i64 {left}, {right}")

    def least(self, left: str, right: str) -> str:
        self.wanted.intrinsics.add("declare i64 @llvm.umin.i64(i64, i64)")
        return self.line(f"call i64 @llvm.umin.i64(i64 {left}, i64 {right})")

    def _find_tile(self) -> None:
        """The first row and column of the tile."""
        tile, parts = self.tile, self.parts
        self.rows = self.value(parts.rows.stop)
        self.columns = int(self.value(parts.columns[0].stop)) * QUAD
        self.depth = int(self.value(parts.inner[0].stop)) * QUAD
        wide = -(-self.columns // tile.columns)
        self.row = self.number("mul", self.number("udiv", "%g", wide), tile.rows)
        self.column = self.number("mul", self.number("urem", "%g", wide), tile.columns)

    def _find_own(self) -> None:
        """The first row and column of this thread, in the tile."""
        rows, columns = self.tile.own
        _, wide = self.tile.warps
        warp, lane = self.number("udiv", "%thread", WARP), self.number("urem", "%thread", WARP)
        # Eight threads that load together touch two quads of rows and four of columns.
        half, rest = self.number("udiv", lane, 2 * WIDTH), self.number("urem", lane, 2 * WIDTH)
        down = self.number("add", self.number("mul", half, 2), self.number("urem", rest, 2))
        across = self.number("udiv", rest, 2)
        self.own_row = self.number(
            "add",
            self.number("mul", self.number("udiv", warp, wide), HEIGHT * rows),
            self.number("mul", down, QUAD),
        )
        self.own_column = self.number(
            "add",
            self.number("mul", self.number("urem", warp, wide), WIDTH * columns),
            self.number("mul", across, QUAD),
        )

    def _row_names(self, row: str, begins: bool) -> dict[str, str]:
        return {self.parts.rows.counter: row}

    def _column_names(self, column: str, begins: bool) -> dict[str, str]:
        quads, four = self.parts.columns
        names = {quads.counter: self.number("udiv", column, QUAD)}
        return names if begins else {**names, four.counter: self.number("urem", column, QUAD)}

    # The sum

    def _sum(self) -> None:
        rows, columns = self.tile.own
        self.totals = [f"%total.{n}" for n in range(rows * columns)]
        self.allocas += [f"  {each} = alloca float" for each in self.totals]
        start = self.value(self.parts.total.value)
        self.lines += [f"  store float {start}, ptr {each}" for each in self.totals]
        tile, parts = self.tile, self.parts
        inner, (_, four) = parts.inner[1].counter, parts.columns
        self.sides = (
            _Side(
                parts.left,
                True,
                tile.rows,
                self.row,
                self.rows,
                0,
                self._row_names,
                inner,
            ),
            _Side(
                parts.right,
                tile.along,
                tile.columns,
                self.column,
                str(self.columns),
                tile.depth * (tile.rows + PADDING),
                self._column_names,
                inner if tile.along else four.counter,
            ),
        )
        turns = -(-self.depth // tile.depth)
        quads = self._quads("0")
        self._read(quads)
        self._put(quads, "0")
        self.lines.append("  call void @llvm.nvvm.barrier0()")
        if turns > 1:
            self.lines += [
                "  br label %sum.from",
                "sum.from:",
                "  br label %sum",
                "sum:",
                "  %turn = phi i64 [ 0, %sum.from ], [ %turn.next, %sum.to ]",
                "  %turn.next = add nuw nsw i64 %turn, 1",
            ]
            quads = self._quads("%turn.next")
            self._read(quads)
            self._multiply(self._half("%turn"))
            self._put(quads, self._half("%turn.next"))
            self.lines += [
                "  call void @llvm.nvvm.barrier0()",
                f"  %more = icmp ult i64 %turn.next, {turns - 1}",
                "  br label %sum.to",
                "sum.to:",
                "  br i1 %more, label %sum, label %sum.end",
                "sum.end:",
            ]
        self._multiply(self._half(str(turns - 1)))

    def _half(self, turn: str) -> str:
        """Which half of the shared memory."""
        return self.number("mul", self.line(f"and i64 {turn}, 1"), self.half)

    def _multiply(self, half: str) -> None:
        rows, columns = self.tile.own
        left, right = self.sides
        self.wanted.intrinsics.add("declare float @llvm.fma.f32(float, float, float)")
        at_once = AT_ONCE // (rows * columns)
        self.count += 1
        label = f"deep{self.count}"
        self.lines += [
            f"  br label %{label}.from",
            f"{label}.from:",
            f"  br label %{label}",
            f"{label}:",
            f"  %{label}.turn = phi i64 [ 0, %{label}.from ], [ %{label}.next, %{label} ]",
            f"  %{label}.next = add nuw nsw i64 %{label}.turn, {at_once}",
        ]
        totals = [self.line(f"load float, ptr {each}") for each in self.totals]
        starts: list[str] = []
        for side, own in ((left, self.own_row), (right, self.own_column)):
            first = self.number("add", self.number("add", half, side.begin), own)
            deep = self.number("mul", f"%{label}.turn", side.step)
            starts.append(self._shared(self.number("add", first, deep)))
        for turn in range(at_once):
            ours = self._fragment(starts[0], turn * left.step, rows, HEIGHT)
            theirs = self._fragment(starts[1], turn * right.step, columns, WIDTH)
            pairs = [(x, y) for x in ours for y in theirs]
            totals = [
                self.line(f"call float @llvm.fma.f32(float {x}, float {y}, float {total})")
                for (x, y), total in zip(pairs, totals, strict=True)
            ]
        for each, total in zip(self.totals, totals, strict=True):
            self.lines.append(f"  store float {total}, ptr {each}")
        self.lines += [
            f"  %{label}.more = icmp ult i64 %{label}.next, {self.tile.depth}",
            f"  br i1 %{label}.more, label %{label}, label %{label}.end",
            f"{label}.end:",
        ]

    def _fragment(self, first: str, offset: int, count: int, threads: int) -> list[str]:
        """What this thread multiplies: quads that lie apart, one of each thread between."""
        found: list[str] = []
        for quad in range(count // QUAD):
            place = self._shared_from(first, offset + quad * threads * QUAD)
            packed = self.line(f"load <{QUAD} x float>, ptr addrspace(3) {place}, align 16")
            found += [
                self.line(f"extractelement <{QUAD} x float> {packed}, i32 {n}") for n in range(QUAD)
            ]
        return found

    # Elements on their way to shared memory

    def _quads(self, turn: str) -> list[_Quad]:
        """What this thread brings for a turn of the sum."""
        return [
            self._quad(side, turn, which)
            for side in self.sides
            for which in range(-(-side.extent * self.tile.depth // QUAD // self.team))
        ]

    def _quad(self, side: _Side, turn: str, which: int) -> _Quad:
        count = side.extent * self.tile.depth // QUAD
        number = self.number("add", "%thread", which * self.team)
        if (which + 1) * self.team > count:
            # Several bring the same.
            number = self.number("urem", number, count)
        depth, place = self._place_along(side, number) if side.along else self._place(side, number)
        goal = self.number("add", self.number("mul", depth, side.step), place)
        names, is_there = self._depth_names(side, turn, depth)
        place = self.number("add", side.origin, place)
        place = self.least(place, self.number("sub", side.limit, 1 if side.along else QUAD))
        names |= side.naming(place, not side.along)
        return _Quad(
            side.expression,
            side.turn,
            [_Place({**names, side.turn: str(n)}) for n in range(QUAD)],
            is_there,
            self.number("add", goal, side.begin),
            side.step if side.along else 1,
        )

    def _place(self, side: _Side, number: str) -> tuple[str, str]:
        """Where in the sum a quad is, and where in the tile."""
        wide = side.extent // QUAD
        place = self.number("mul", self.number("urem", number, wide), QUAD)
        return self.number("udiv", number, wide), place

    def _place_along(self, side: _Side, number: str) -> tuple[str, str]:
        """The same; threads side by side have two quads of one row, and then of the next, so that
        they put them into different banks."""
        pair, low = self.number("udiv", number, 2), self.number("urem", number, 2)
        place, high = self.number("urem", pair, side.extent), self.number("udiv", pair, side.extent)
        quad = self.number("add", self.number("mul", high, 2), low)
        return self.number("mul", quad, QUAD), place

    def _depth_names(self, side: _Side, turn: str, depth: str) -> tuple[dict[str, str], str | None]:
        """Where in the sum, and whether it goes on so far."""
        quads, four = self.parts.inner
        whole = self.number("mul", turn, self.tile.depth // QUAD)
        quad = self.number("add", whole, self.number("udiv", depth, QUAD))
        is_there = None
        if self.depth % self.tile.depth:
            is_there = self.line(f"icmp ult i64 {quad}, {self.depth // QUAD}")
            quad = self.least(quad, str(self.depth // QUAD - 1))
        names = {quads.counter: quad}
        if not side.along:
            names[four.counter] = self.number("urem", depth, QUAD)
        return names, is_there

    @contextmanager
    def _at(self, place: _Place, turn: str) -> Iterator[None]:
        held, self.held = self.held, place.held
        self.scopes.append(place.scope)
        self.names.append(place.names)
        self.turns[turn] = place.names[turn]
        yield
        del self.turns[turn]
        self.names.pop()
        self.scopes.pop()
        self.held = held

    def _read(self, quads: Sequence[_Quad]) -> None:
        """Ask memory for all that the quads are made of."""
        for quad in quads:
            for place in quad.places:
                with self._at(place, quad.turn):
                    for each in self.parts.assigned:
                        if self.is_known(each.value):
                            self.statement(each)
                    self._loads(quad.expression)

    def _loads(self, expression: Expression) -> None:
        match expression:
            case Guarded(condition):
                self._loads(condition)
            case Load():
                if self.is_known(expression):
                    self.value(expression)
            case _:
                for each in children(expression):
                    self._loads(each)

    def _put(self, quads: Sequence[_Quad], half: str) -> None:
        for quad in quads:
            values: list[str] = []
            for place in quad.places:
                with self._at(place, quad.turn):
                    values.append(self.value(quad.expression))
            if quad.is_there is not None:
                values = [
                    self.line(f"select i1 {quad.is_there}, float {value}, float 0.0")
                    for value in values
                ]
            first = self._shared(self.number("add", quad.goal, half))
            if quad.step == 1:
                self._store_quad(first, values)
                continue
            for n, value in enumerate(values):
                goal = self._shared_from(first, n * quad.step)
                self.lines.append(f"  store float {value}, ptr addrspace(3) {goal}, align 4")

    def _shared(self, offset: str) -> str:
        return self.line(f"getelementptr float, ptr addrspace(3) {self.memory}, i64 {offset}")

    def _shared_from(self, first: str, offset: int) -> str:
        return self.line(f"getelementptr float, ptr addrspace(3) {first}, i64 {offset}")

    def _store_quad(self, goal: str, values: Sequence[str]) -> None:
        packed = "undef"
        for n, value in enumerate(values):
            packed = self.line(f"insertelement <{QUAD} x float> {packed}, float {value}, i32 {n}")
        kind = f"<{QUAD} x float>"
        self.lines.append(f"  store {kind} {packed}, ptr addrspace(3) {goal}, align 16")

    # Results

    def _finish(self) -> None:
        """Quad by quad; what some of them need is asked for before those before them are done."""
        results = self._results()
        batches = [results[n : n + AHEAD] for n in range(0, len(results), AHEAD)]
        self._ask_for(batches[0])
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            self._ask_for(following)
            for result in batch:
                self._store(result)

    def _results(self) -> list[_Result]:
        rows, columns = self.tile.own
        sums = [self.line(f"load float, ptr {each}") for each in self.totals]
        first_row = self.number("add", self.row, self.own_row)
        first_column = self.number("add", self.column, self.own_column)
        made: list[_Result] = []
        for row in range(rows):
            apart = HEIGHT * QUAD * (row // QUAD) + row % QUAD
            at_row = self.number("add", first_row, apart)
            for quad in range(columns // QUAD):
                at_column = self.number("add", first_column, WIDTH * QUAD * quad)
                begin = row * columns + quad * QUAD
                made.append(self._result(at_row, at_column, sums[begin : begin + QUAD]))
        return made

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
        names = {**self._row_names(row, True), **self._column_names(column, True)}
        four, total = self.parts.columns[-1].counter, self.parts.total.name
        places = [_Place({**names, four: str(n), total: each}) for n, each in enumerate(sums)]
        return _Result(places, is_there)

    def _ask_for(self, results: Sequence[_Result]) -> None:
        """All that is read for them, and known where."""
        for place in (place for result in results for place in result.places):
            with self._at(place, self.parts.columns[-1].counter):
                for each in self.parts.assigned:
                    self.statement(each)
                for statement in self.parts.after:
                    for expression in expressions(statement):
                        self._loads(expression)

    def _store(self, result: _Result) -> None:
        stores: dict[int, list[tuple[str, str, torch.dtype]]] = {}
        merges = [each for each in self.parts.after if isinstance(each, Merge)]
        for place in result.places:
            with self._at(place, self.parts.columns[-1].counter):
                for number, statement in enumerate(self.parts.after):
                    if isinstance(statement, Merge):
                        # Before the branch, as all that may be used after it.
                        self.value(statement.value)
                    elif isinstance(statement, Store):
                        dtype = statement.value.dtype
                        goal = self.element(statement.buffer, statement.offset, dtype)
                        made = (goal, self.value(statement.value), dtype)
                        stores.setdefault(number, []).append(made)
                    else:
                        assert isinstance(statement, Assign)
                        self.statement(statement)
        self.count += 1
        label = f"sums{self.count}"
        if result.is_there is not None:
            way = f"i1 {result.is_there}, label %{label}, label %{label}.end"
            self.lines += [f"  br {way}", f"{label}:"]
        for goal, value, dtype in (each for neighbours in stores.values() for each in neighbours):
            self.store(goal, value, dtype)
        for place in result.places if merges else ():
            with self._at(place, self.parts.columns[-1].counter):
                self.written_out = self.parts.columns[-1]
                for each in merges:
                    self.atomic(each)
                self.written_out = None
        if result.is_there is not None:
            self.lines += [f"  br label %{label}.end", f"{label}.end:"]
