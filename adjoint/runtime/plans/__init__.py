"""Programs of plans: the parts that all targets share.

A *program* (`program.py`) is a plan written as one Python function (`writing.py`), in which
everything between two library calls is one native call.

**Sizes are arguments.**  What depends on sizes - extents, the layout of temporaries (`layout.py`),
the arguments of every kernel - is recorded once as *host code* (`host.py`, `hostcode.py`): integer
instructions over a block of words.  A *binding* (`binding.py`) has such a block, and the memory for
temporaries.  For sizes never seen before a native interpreter (`interpreter.py`) executes the host
code, which takes microseconds; nothing is kept for sizes of earlier calls.  Host code is data and
not machine code because compiling it would take longer than all calls that it could speed up.

**Memory between calls.**  A program keeps the memory of its temporaries and results for its next
call.  One with checkpoints gives it back after each call on a CPU (`Plan.gives_back`), and its row
tiles never mix two runs of a checkpoint, so that the derivative of one is complete before the next
is recomputed.
"""
