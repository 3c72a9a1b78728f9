"""`adjoint.export`: a function, its derivatives and its parameters become one file."""

from adjoint.exporting.making import export

__all__ = ["export"]
