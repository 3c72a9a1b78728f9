"""Capture: a Python function or a Dynamo graph becomes a pure graph with a calling convention.

There are two entries: a graph of Dynamo's (`dynamo.py`) and one call of a Python function
(`direct.py`).  Both run the program once on fake tensors (`program.py`) under the tracer of
`adjoint.trace`.

**Calling convention** (`graph/calling.py`).  The graph is pure.  What the caller sees besides
results is data: which inputs are written in place and how else they change (`input_changes.py`),
which results are views or aliases (`recipes.py`: the program's own view ops, replayed in eager
torch, so that `_base`, `requires_grad` and storage are eager's), and which storage offsets the
graph depends on (`inputs.py`).  `runtime/calling.py` carries it out after the graph has run, so a
call that fails leaves its inputs as they were.

**Derivatives inside** a compiled function, such as `torch.autograd.grad` in a forward, are traced
like any op.  Dynamo traces them only with a setting, which is switched on while it compiles frames
for this backend (`torch_private/dynamo.py`).

**Bodies** (`control_flow.py`, `functions.py`).  Branches of `cond`, bodies of loops and the halves
of a custom `autograd.Function` are traced into graphs of their own; tensors from outside are
*lifted*, that is, become inputs.

What cannot be captured raises a `CaptureError` where it is met, before anything has run.
"""
