"""Emit: kernels, which are loop nests, become LLVM IR text for the CPU and for NVIDIA GPUs."""
