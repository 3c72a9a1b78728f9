"""Running programs inside ordinary PyTorch: the caller's effects, autograd, specializations.

A call of a compiled graph passes these, from the outside in:

* `entry.py` finds the capture for the pattern in which the inputs alias, or captures again;
* `calling.py` carries out the calling convention around a pure graph: `input_changes.py` mutates
  the caller's inputs, `recipes.py` makes results;
* `bridge.py` runs the graph as a node of autograd's graph (`autograd_node.py`): an
  `autograd.Function` whose outputs include the saved values.  Its backward is a graph too and,
  under `create_graph=True`, runs as such a function in turn; cotangents of saved values come back
  to the first.  Gradients that the current backward pass does not need are not computed;
* `grad_program.py` holds the forward graph and the backward graphs for one set of inputs that
  require grad, and asks the compiler for those that are missing, behind the protocol of
  `executable.py`.  No module of this package imports a stage;
* `sized_programs.py` finds the native program for the sizes of the call;
* `plans/` is what programs of all targets share; `cpu/`, `gpu/` and `loops.py` run them.

Each remembers the key of the last call and what it found, and compares that key before it looks
into a table.

**Specializations** (`specializations.py`).  Compiled code for one kind of call is an entry of a
bounded table.  A branch that differentiation or lowering takes on a symbolic size is an
*assumption*, which a *guard* checks in each call; for sizes that violate it the graph is compiled
again.

    table                  key                               bound                  when full
    EntryPoint             how inputs alias; their sizes     MAX_SHARING_PATTERNS   evicts
    DifferentiableGraph    assumptions about sizes           MAX_SIZE_VERSIONS      eager autograd *
    - in each              inputs that require grad          MAX_INPUT_SETS         evicts
    GradProgram            outputs that have cotangents      MAX_PATTERNS or all    evicts
    - in each              assumptions about sizes           MAX_SIZE_VERSIONS      an error
    - in each              gradients that are needed         MAX_NEEDED_SETS        all gradients
    SizedPrograms          assumptions about sizes           MAX_SIZE_VERSIONS      op by op *
    transforms/table.py    what a function means             MAX_MEANINGS           evicts
    - in each              kind of arguments                 MAX_ARGUMENT_KINDS     evicts
    - in each              assumptions about sizes           MAX_SIZE_VERSIONS      torch.func *

    * with a warning

**Fake tensors are checked once** (`checking.py`).  A plan relies on the dtypes, strides and
aliasing that fakes predict for library calls.  Results are compared with the prediction in the
first run of each binding, and again in the first run in which other axes are empty or have one
element.  On a difference the run stops before a kernel reads the result, and the graph is compiled
again with what was observed; if the result cannot be predicted, it runs op by op.
"""
