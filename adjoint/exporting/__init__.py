"""`adjoint.export`: a function, its derivatives and its parameters become one file.

One call is captured, and all that may be asked of it later is compiled (`graphs.py`): the graph,
its forward with saved values and, for each order, its backward graphs, as plans and machine code
(`code.py`).  `making.py` adds what holds for the whole file and writes it.

A branch on a size that capturing, differentiating or lowering took is a condition of the record
(`recording.py`).  The exporter also tries the bounds of each dynamic size, and 0 and 1; where one
of them takes another branch, the program is captured again for it.  A file may have several
records, which share parameters, kernels and constants.
"""

from adjoint.exporting.making import export

__all__ = ["export"]
