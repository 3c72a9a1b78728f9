"""Partition: a joint graph is split into a forward and a backward graph.

**What is saved** (`split.py`).  The fewest bytes from which the backward graph can recompute the
rest with cheap operators (`recomputing.py`): a minimum cut (`flow.py`).  What an op costs is in
`rules/costs.py`, derived from the formulas that kernels use.  The saved values suffice for the
derivative of any subset of results.  At the second order cotangents arrive at the saved values too,
so what their derivatives need is saved at the first order (`splitting.py`, above this package).
Random draws are saved, never drawn twice.  A softmax in half precision is opened into its parts, so
that only row maxima and row sums are saved (`softmax.py`).

**Checkpoints** (`marks.py`).  Each node of a `torch.utils.checkpoint` belongs to a *run*: one
execution of the checkpointed function.  A value that a run computes and that the derivative of the
same run reads is recomputed, whatever it costs.  A value that leaves the run is saved if it is
needed, and so is what the run takes from outside.  Policies of selective checkpointing name more
values to save, or to offload: those wait in host memory (`offloading.py`), and on a GPU they are
copied there and back, overlapped with computation (`host_memory.py`, below).  Dropout in a
checkpoint is opened into its mask and a product, so that the mask alone is saved (`dropout.py`).
Nodes of different runs are never merged, and the nodes of a backward graph are a run of their own;
otherwise, under a transform, where forward and backward are one graph, a recomputed value would be
merged with the one computed first.

**Memory budget** (`budget.py`, option `memory_budget`).  The forward nodes are divided into parts
where few bytes cross, and parts are marked as if they were checkpoints.  Of several choices of
parts, those whose predicted peak (`Compiler.footprint`) is within the budget are compared, and the
one of least predicted time is taken: a larger budget never makes a step slower.  The budget holds
for the program and its first derivative; a second derivative recomputes what is marked.
"""
