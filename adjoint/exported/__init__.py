"""Exported programs: one file that runs without a compiler.

A file holds plans, machine code, parameters, and how the program is called and differentiated
(`records.py`).  Reading validates all of it before anything is mapped; what does not fit this
machine, or a call, is a `LoadError` with the reason.  A call is checked before it runs
(`loaded.py`, `versions.py`): structure, constants, dtypes, sizes, and the conditions on sizes.

The autograd node is that of compiled graphs (`runtime/autograd_node.py`); `ExportedNode` answers
its questions from the file.  There are derivatives for groups of results (each alone, parameters
together, all) and of saved values, with respect to all inputs.  A backward pass runs the
derivatives of the results that have cotangents and adds their gradients; gradients that nothing
needs are dropped.  Results of the last order that was exported have an autograd node that raises an
error when it is differentiated.
"""
