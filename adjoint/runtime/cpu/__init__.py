"""Running kernels on the CPU: LLVM's compiler, torch's OpenMP threads and torch's BLAS.

A program calls its kernels through built-in functions of generated code (`callables.py`), because a
call through ctypes takes as long as a small kernel.  Matrix products are among the native steps
(`products.py`), and row tiles run both (`tiles.py`).  Autograd is asked in native code, too, which
gradients a backward pass needs (`reached.py`).

**An image is machine code without a loader** (`images.py`).  `linking.py` links the
position-independent objects that LLVM made with the glue between kernels (`residents.py`) and with
functions of LLVM's runtime library (`support.py`).  Anything but code, constants and a few listed
kinds of relative relocations is refused.  Functions outside - OpenMP, BLAS, a few of C and CPython
(`externals.py`) - are called through a table of addresses, which is filled before the memory
becomes executable and read-only.
"""
