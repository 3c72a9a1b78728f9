"""Exported programs: one file that runs without a compiler.

A file holds plans, machine code, parameters, and how the program is called and differentiated
(`records.py`).  Reading validates all of it before anything is mapped; what does not fit this
machine, or a call, is a `LoadError` with the reason.  A call is checked before it runs
(`loaded.py`, `versions.py`): structure, constants, dtypes, sizes, and the conditions on sizes.

The autograd node is that of compiled graphs (`runtime/autograd_node.py`); `ExportedNode` gives it
the backward graphs in the file.  These are for all results together and for groups of results: the
gradients of parameters are one group, those of saved values another, and further results are groups
of one (`exporting/graphs.py`).  Where derivatives are differentiated again, sets of saved values
have backward graphs, too.  Each computes the gradients of all inputs.  A backward pass runs those
of the groups that have cotangents and adds their gradients; gradients that nothing needs are
dropped.  Results of the last order that was exported have an autograd node that raises an error
when it is differentiated.
"""
