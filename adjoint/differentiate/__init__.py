"""Differentiate: a graph becomes its joint graph, the forward nodes followed by a reverse sweep.

**The sweep** (`sweep.py`, `cotangents.py`) owns broadcasting, dtypes, zeros and accumulation; a
rule of `adjoint.rules` only states a vector-Jacobian product in ordinary torch, which is traced.
The joint graph consists of the same ops as any graph, so one table of rules serves every order.  A
missing cotangent is a symbolic zero, never a tensor, and a node that only zeros reach has no
reverse region.  `activity.py` says beforehand which values a derivative flows through,
`dependence.py` afterwards what derivatives of other sets of outputs may read.

**Forward mode is the transpose.**  A backward graph is linear in its tangents; its derivative with
respect to them is the Jacobian-vector product (`Compiler.transposed`).  `selections.py` masks
factors first, so that the transpose does not multiply zero by infinity.

**Control flow** (`bodies.py`).  The reverse of a body is a body: a `cond` becomes a `cond`; `scan`,
`map` and `while_loop` become a `scan` in the other direction over the values carried into each
step.  Reverse bodies recompute what they need, except random draws, which the forward operator
returns together with the carried values.

**Custom functions** (`expansion.py`).  The forward half of an `autograd.Function` is inlined, its
backward half is the reverse region, and its saved values have the history that eager gives them.

**Segments** (`segments.py`).  In eager each result has an autograd node of its own: it has hooks,
may retain its gradient, and another result can be differentiated with respect to it.  So a graph is
cut at results from which other results are computed, and each *segment* is one autograd node.  The
forward graph still runs as one program.

**Left to eager autograd** (`eager.py`): functions marked `once_differentiable` or
`set_materialize_grads(False)`, custom ops that mutate or have effects, hooks on saved tensors,
tensor subclasses, embeddings with sparse gradients.
"""
