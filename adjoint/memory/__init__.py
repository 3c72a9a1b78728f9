"""What a function saves for its derivative, why, and the memory that it will need."""

from adjoint.memory.report import MemoryReport, saved_values

__all__ = ["MemoryReport", "saved_values"]
