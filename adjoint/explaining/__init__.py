"""What the compiler did to a function or a whole program, for the person who wrote it."""

from adjoint.explaining.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
