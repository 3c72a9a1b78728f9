"""Loop nests: a small typed language for kernels, on any target."""
