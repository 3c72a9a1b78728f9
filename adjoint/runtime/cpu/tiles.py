"""Row tiles: kernels and matrix products that each thread runs for a block of its rows at a time.

Each thread has arguments of its own for each kernel and product.  Before each block of rows it
updates ("patches") those that depend on the block, `base + first * a + last * b + offset`, and then
calls the kernels and products in order.  Products are calls of the BLAS in torch's library.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from adjoint.loops.plan import Launch, Matrix, Product, RowTiles, Scratch, SlotKind
from adjoint.runtime.cpu.products import INNER, LEFT, RESULT, RIGHT, ROWS, gemm, product_words
from adjoint.runtime.cpu.residents import resident
from adjoint.runtime.plans.hostcode import Value, Word, WordAddress

if TYPE_CHECKING:
    from adjoint.runtime.cpu.program import CpuHost
    from adjoint.runtime.plans.host import Addresses

TEXT = """\
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()

; region: rows, rows of a block, number of threads; then for each thread: patches, their number,
; steps that run once and their number, steps of each block and their number
define void @adjoint.tiles(ptr %region, i64 %threads) {
  %at = getelementptr i64, ptr %region, i64 2
  %chunks = load i64, ptr %at
  %few = icmp sle i64 %chunks, 1
  br i1 %few, label %alone, label %together
alone:
  call void @adjoint.tiles.share(ptr %region)
  ret void
together:
  %n = trunc i64 %chunks to i32
  call void @GOMP_parallel(ptr @adjoint.tiles.share, ptr %region, i32 %n, i32 0)
  ret void
}

define internal void @adjoint.tiles.share(ptr %region) {
  %mine = call i32 @omp_get_thread_num()
  %team = call i32 @omp_get_num_threads()
  %t0 = zext i32 %mine to i64
  %step = zext i32 %team to i64
  %at = getelementptr i64, ptr %region, i64 2
  %chunks = load i64, ptr %at
  br label %next
next:
  %t = phi i64 [ %t0, %0 ], [ %t.next, %work ]
  %more = icmp slt i64 %t, %chunks
  br i1 %more, label %work, label %end
work:
  call void @adjoint.tiles.thread(ptr %region, i64 %t, i64 %chunks)
  %t.next = add i64 %t, %step
  br label %next
end:
  ret void
}

define internal void @adjoint.tiles.thread(ptr %region, i64 %t, i64 %chunks) {
entry:
  %rows = load i64, ptr %region
  %block.at = getelementptr i64, ptr %region, i64 1
  %block = load i64, ptr %block.at
  %own = mul i64 %t, 6
  %place = add i64 %own, 3
  %thread = getelementptr i64, ptr %region, i64 %place
  %patches = load ptr, ptr %thread
  %a1 = getelementptr i64, ptr %thread, i64 1
  %patched = load i64, ptr %a1
  %a2 = getelementptr i64, ptr %thread, i64 2
  %begin = load ptr, ptr %a2
  %a3 = getelementptr i64, ptr %thread, i64 3
  %begins = load i64, ptr %a3
  %a4 = getelementptr i64, ptr %thread, i64 4
  %body = load ptr, ptr %a4
  %a5 = getelementptr i64, ptr %thread, i64 5
  %steps = load i64, ptr %a5
  call void @adjoint.tiles.steps(ptr %begin, i64 %begins)
  %low = mul i64 %t, %rows
  %from = sdiv i64 %low, %chunks
  %t1 = add i64 %t, 1
  %high = mul i64 %t1, %rows
  %to = sdiv i64 %high, %chunks
  br label %test
test:
  %first = phi i64 [ %from, %entry ], [ %last, %run ]
  %any = icmp slt i64 %first, %to
  br i1 %any, label %bound, label %end
bound:
  %far = add i64 %first, %block
  %near = icmp slt i64 %far, %to
  %last = select i1 %near, i64 %far, i64 %to
  br label %patch
patch:
  %p = phi i64 [ 0, %bound ], [ %p.next, %patching ]
  %some = icmp slt i64 %p, %patched
  br i1 %some, label %patching, label %run
patching:
  %entry.at = getelementptr [5 x i64], ptr %patches, i64 %p
  %target = load ptr, ptr %entry.at
  %b.at = getelementptr i64, ptr %entry.at, i64 1
  %b = load i64, ptr %b.at
  %x.at = getelementptr i64, ptr %entry.at, i64 2
  %x = load i64, ptr %x.at
  %y.at = getelementptr i64, ptr %entry.at, i64 3
  %y = load i64, ptr %y.at
  %fx = mul i64 %first, %x
  %ly = mul i64 %last, %y
  %s = add i64 %fx, %ly
  %o.at = getelementptr i64, ptr %entry.at, i64 4
  %o = load i64, ptr %o.at
  %sb = add i64 %s, %b
  %v = add i64 %sb, %o
  store i64 %v, ptr %target
  %p.next = add i64 %p, 1
  br label %patch
run:
  call void @adjoint.tiles.steps(ptr %body, i64 %steps)
  br label %test
end:
  ret void
}

define internal void @adjoint.tiles.steps(ptr %steps, i64 %count) {
entry:
  br label %test
test:
  %s = phi i64 [ 0, %entry ], [ %s.next, %call ]
  %more = icmp slt i64 %s, %count
  br i1 %more, label %call, label %end
call:
  %pair = getelementptr [2 x i64], ptr %steps, i64 %s
  %function = load ptr, ptr %pair
  %args.at = getelementptr i64, ptr %pair, i64 1
  %args = load ptr, ptr %args.at
  call void %function(ptr %args, i64 1)
  %s.next = add i64 %s, 1
  br label %test
end:
  ret void
}
"""


# The function that runs row tiles.
TILES = "adjoint.tiles"


@functools.cache
def tile_runner() -> int:
    """The address of the native function that runs row tiles."""
    return resident(TEXT, TILES)


def row_tile_words(host: CpuHost, tiles: RowTiles, address: Addresses) -> WordAddress:
    """The argument block of `adjoint.tiles` for one `RowTiles` step."""
    words = host.code
    threads: list[Word] = []
    for index in range(host.max_threads):
        thread = _Thread(host, address, index, tiles)
        begin = [thread.launch(launch) for launch in tiles.begin]
        body = [
            thread.launch(step) if isinstance(step, Launch) else thread.product(step)
            for step in tiles.body
        ]
        threads += [
            words.put([word for patch in thread.patches for word in patch]),
            len(thread.patches),
            words.put([word for pair in begin for word in pair]),
            len(begin),
            words.put([word for pair in body for word in pair]),
            len(body),
        ]
    rows, chunks = host.size(tiles.rows), host.chunks(tiles)
    return words.put([rows, host.tile_rows(tiles), chunks, *threads])


class _Thread:
    """The arguments of one thread's kernels and products, and the patches of them."""

    def __init__(
        self,
        host: CpuHost,
        address: Addresses,
        thread: int,
        tiles: RowTiles,
    ) -> None:
        self.host = host
        self.address = address
        self.thread = thread
        self.tiles = tiles
        self.patches: list[list[Word]] = []
        """The word to write, then base, factor of the first row, factor of the last, offset."""

    def patch(
        self,
        arguments: WordAddress,
        position: int,
        base: Word,
        first: Value | int,
        last: int,
        offset: Value | int = 0,
    ) -> None:
        """Before each tile, argument `position` = base + first row * first + last row * last."""
        word = WordAddress(arguments.index + position)
        self.patches.append([word, base, first, last, offset])

    def launch(self, launch: Launch) -> list[Word]:
        """The code of a kernel, and its arguments."""
        bases = [self.base(operand) for operand in launch.operands]
        first_row = len(bases) + 2
        extents = self.host.code.sizes(launch.extents)
        arguments = self.host.code.put(
            [*bases, self.host.chunks(launch), self.thread, 0, 0, *extents]
        )
        for position, (operand, base) in enumerate(zip(launch.operands, bases, strict=True)):
            if self.is_local(operand):
                # Kernels index rows from the first row of all; the tile's memory begins at its own.
                self.patch(arguments, position, base, -self.row_bytes(operand), 0)
        self.patch(arguments, first_row, 0, 1, 0)
        self.patch(arguments, first_row + 1, 0, 0, 1)
        return [self.host.functions[launch].address, arguments]

    def is_local(self, operand: int | Scratch) -> bool:
        return isinstance(operand, int) and self.host.plan.slots[operand].kind is SlotKind.LOCAL

    def base(self, operand: int | Scratch) -> Word:
        """The address of an operand; of a local one, this thread's."""
        found = self.address(operand)
        if self.is_local(operand):
            assert isinstance(found, Value)
            return found + self.host.local_stride(self.tiles) * self.thread
        return found

    def row_bytes(self, operand: int | Scratch) -> Value:
        assert isinstance(operand, int)
        return self.host.row_bytes(self.tiles, operand)

    def product(self, product: Product) -> list[Word]:
        """The code of a matrix product, and its arguments in the order that `GEMM` says."""
        itemsize, code = product.dtype.itemsize, self.host.code
        n = code.size(product.shape[1])
        base, leading = self.result(product.result, n, itemsize)
        words = product_words(code, product, self.base, (base, leading), int(product.sums))
        # A tile's patches add the offsets of factors.
        arguments = code.put([*words, 0, 0])
        self.move(arguments, LEFT, product.left, itemsize, by_rows=True)
        self.move(arguments, RIGHT, product.right, itemsize, by_rows=product.sums)
        if isinstance(product.result, int) and not self.is_local(product.result):
            self.patch(arguments, RESULT, base, self.row_bytes(product.result), 0)
        # The extent that counts rows is that of the tile: last row - first row.
        self.patch(arguments, INNER if product.sums else ROWS, 0, -1, 1)
        return [gemm(product.dtype, flushes=True), arguments]

    def move(
        self, arguments: WordAddress, position: int, matrix: Matrix, itemsize: int, by_rows: bool
    ) -> None:
        """Let a factor begin at its offset and, if its rows are tiled, at the tile's first row."""
        offset = self.host.size(matrix.offset) * itemsize
        is_tiled = by_rows and not self.is_local(matrix.slot)
        row_bytes = self.row_bytes(matrix.slot) if is_tiled else 0
        if is_tiled or offset.known != 0:
            self.patch(arguments, position, self.base(matrix.slot), row_bytes, 0, offset)

    def result(self, operand: int | Scratch, columns: Value, itemsize: int) -> tuple[Word, Value]:
        """Address and leading dimension of a product's result."""
        if isinstance(operand, Scratch):
            start = self.address(operand)
            assert isinstance(start, Value)
            return start + self.host.size(operand.count) * (itemsize * self.thread), columns
        return self.base(operand), self.row_bytes(operand) // itemsize
