"""Lower: a graph becomes a plan of fused kernels and library calls.

In the order in which `planning.py` does it:

1. **Definitions** (`definitions/`) say how one element of a result is computed: mapped from
   elements of other tensors, reduced, or scattered.  Views are index arithmetic (`index.py`,
   `views.py`) and are never computed.  Operators of several loops, such as softmax, are first
   decomposed into torch programs of simpler ones (`compositions/`, the pass `decompose`).
2. **Selection** (`selection.py`).  A node that kernels can compute becomes an *item*.  The others
   are library calls: nodes without a definition, on another device, of a dtype that kernels do not
   support, or that eager rounds differently.
3. **Fusion** (`fusion.py`, `groups.py`).  A *group* is the items of one loop nest over rows and
   columns.  An item joins the group that computes its operands if each iteration reads the elements
   that the group has just computed; an item with operands from two groups merges them.  An
   elementwise item that reads only tensors in memory joins the group of its first reader.  An
   element that the group computes in another iteration is inlined: computed again.  Reductions
   over columns come between passes over the columns of a row, so softmax and layer norm with their
   derivatives are one nest each.
4. **Scheduling** (`scheduling.py`) orders groups and library calls.
5. **Loop nests**: `nests.py` for the CPU, `grids.py` for the GPU.  On a CPU sums over rows and
   scatters have one partial result per thread, combined in a fixed order (`partial_sums.py`):
   results depend on the number of threads and on nothing else.  Reductions over columns that are
   strided in memory take a block of rows at once (`strided_rows.py`).

**Row tiles, CPU** (`row_tiles.py`).  Kernels and matrix products over the same rows run tile by
tile: each thread takes a tile of rows that fits its cache through all of them.  Products call
torch's BLAS with subnormal (denormal) operands flushed to zero, because arithmetic on them is slow.

**Grids, GPU** (`grids.py`).  A kernel is one parallel loop.  A *team* of threads - one thread, part
of a warp, a warp, a block - runs each iteration, divides `vector` loops among its threads and
reduces accumulators by warp shuffles and shared memory.  That is the whole mapping, so the
evaluator and the CPU emitter can run the same kernels, as tests do.  Inner loops are unrolled, and
adjacent elements are one 16-byte access.  Sums over rows have a partial result for each chunk of
rows, which a second kernel combines; scatters use atomics.  Loads along one axis and stores
along another are coalesced by a tile in shared memory (`transposes.py`).

**Memory-bound targets recompute** (`target.is_memory_bound`).  A value that follows from no more
bytes than it has is inlined wherever it is read (`inlining.py`).  After fusion a kernel recomputes
what follows from values that it loads anyway (`load_elimination.py`).  At the peak of memory a late
reader recomputes a value, as long as each 1 % of extra memory traffic saves at least 4 % of peak
memory (`recomputation.py`, `rematerialization.py`).

**Narrow products, GPU** (`products.py`).  A float32 product of a tall and a narrow matrix is
memory-bound, so it is a kernel of ours: cheap operands are inlined, and the operators after it are
its epilogue.

**In place, CPU.**  A kernel stores the new value of an input in the input itself where that is safe
(`in_place.py`).  A write to a part of a tensor is one library call (`partial_writes.py`, the pass
`join-writes`), in the memory of that tensor where that is safe (`in_place_calls.py`); if a later
step fails, the program puts back what it replaced in inputs.

**Random numbers** (`draws.py`, the pass `draw-in-kernels`).  Dropout and its like become pointwise
programs over random bits of Philox.  A tensor of seeds is one more input.  Each draw has its own
stream and each element its own counter, so numbers depend neither on threads nor on strides, and
replaying a CUDA graph draws new ones.
"""
