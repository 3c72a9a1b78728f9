"""The graph: a `torch.fx.Graph` of functional operators whose inputs and outputs are described.

* `descriptors` - what each input and output means; read its docstring first.
* `metadata` - what each node carries: fake value, source line, autograd mode, checkpoint region.
* `captured`, `calling` - a captured program: its graph and its calling convention.
* `operations` - the operations that ATen lacks; `contiguity` - kernels that assume a layout.
* `evaluation` - the interpreter that runs a graph op by op in eager torch; `eager_functions` - the
  functions that it calls in place of some operators.
* `purity`, `capturable` - which nodes may be removed, rerun, or captured in a CUDA graph.
* `copying`, `subgraphs`, `reachability` - copies, bodies of higher-order operators, dependents.
* `sizes` - specialization to sizes: assumptions, guards, resizing.
* `show`, `verify` - printing a graph; checking its invariants.
* `boundary` - where an exception inside the compiler becomes one of `adjoint.errors`.
"""
