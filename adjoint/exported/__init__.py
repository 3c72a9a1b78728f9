"""Exported programs: one file that runs without a compiler.

A file holds plans, machine code, parameters, and how the program is called and differentiated
(`records.py`).  Reading validates all of it before anything is mapped; what does not fit this
machine, or a call, is a `LoadError` with the reason.  A call is checked before it runs
(`loaded.py`, `versions.py`): structure, constants, dtypes, sizes, and the conditions on sizes.

The autograd node is that of compiled graphs (`runtime/autograd_node.py`); `ExportedNode` answers
its questions from the file.  There is one derivative for all inputs asked for: gradients that
nothing needs are computed and dropped, and zeros stand for missing cotangents.  Results of the last
order that was exported have an autograd node that raises an error when it is differentiated.
"""
