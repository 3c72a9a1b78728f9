"""Emit: loop nests become LLVM IR text, for CPU and GPU alike. So far: the math library."""
