"""Lower: a graph becomes a plan of fused kernels and library calls."""
