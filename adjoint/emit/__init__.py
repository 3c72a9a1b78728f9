"""Emit: kernels, which are loop nests, become LLVM IR for the CPU and for NVIDIA GPUs.

`body.py` writes statements and expressions for every target.  `llvm.py` adds the OpenMP entry
points of the CPU; `nvptx.py`, `teams.py` and `lanes.py` the thread mapping of a GPU.  Math
functions are branch-free IR (`math/`), some on a GPU by its approximate instructions
(`shortcuts.py`).  `products.py` and `staging.py` are tiled matrix products.

If LLVM rejects a kernel, its operators become library calls, the graph is lowered again, and the
user is warned (`adjoint.kernels`).
"""
