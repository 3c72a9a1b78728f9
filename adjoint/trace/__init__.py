"""Tracing: torch ops run on fake tensors and are recorded as pure nodes of a graph.

Capture traces the user's program; differentiation traces derivative rules, which are torch programs
too.  Torch's own autograd runs above the fakes, so they alias, are views, require grad and count
versions as the real tensors would.  `tracer.py` is a dispatch mode below autograd: it sees each
ATen op and appends its functional counterpart (`writes.py`, `emission.py`).

**Alias model** (`aliasing.py`, `views.py`).  A write through a view becomes a new value of each
tensor that it is a view of: `select` becomes `select_scatter`.  Aliases that autograd sees as views
of one another are a *family* with one autograd history; between families (after `detach`, under
`no_grad`, through `.data`) data is shared but history is not, which a graph expresses as
`with_data(history, data)`.  This also covers overlapping inputs, several dtypes over one storage
(`geometry.py`), and `as_strided` beyond its tensor, for which the whole storage becomes the input.

Torch's functionalization is not used.  It works below autograd, so it has no histories, and it
regenerates a view in the grad mode of the moment at which it is read instead of made.

**Scopes** (`scope.py`, `subgraph.py`).  Each graph under construction is a scope; a value of an
outer scope that an inner one uses is lifted to an input.
"""
