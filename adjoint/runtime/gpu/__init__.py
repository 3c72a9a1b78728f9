"""Running kernels on a GPU: the driver, loading, and programs of launches.

The temporaries of all programs on a stream share one arena (`memory.py`).

**CUDA graphs** (`cuda_graphs.py`, `captured_calls.py`) are for calls that repeat; a call with sizes
that were not seen recently is launched at once.  A call is captured once its addresses - inputs,
and the large results that torch's allocator returns - have repeated, and replayed when all tensor
addresses match the captured ones.  Small results lie in memory of the CUDA graph, which is replayed
only if nothing refers to them any more.  What needs the host is not captured
(`graph/capturable.py`); `program.cuda_graphs.why` gives the reason.
"""
