"""Graphs become plans: kernels of fused loops, and calls of what stays as it is."""
