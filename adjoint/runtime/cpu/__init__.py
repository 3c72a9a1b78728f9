"""Running kernels on the processor: LLVM's compiler, torch's threads."""
