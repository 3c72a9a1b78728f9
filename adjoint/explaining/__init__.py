"""What the compiler did to a function or a whole program, for the person who wrote it."""

from adjoint.explaining.explanation import Explanation, explain
from adjoint.explaining.program import ProgramReport, watched_program

__all__ = ["Explanation", "ProgramReport", "explain", "watched_program"]
