"""The cache on disk: compiled code and programs that later processes reuse, as files in a folder.

An entry is found by the *facts* that it depends on, such as the digest of a text, the CPU and the
version of LLVM.  It is one file (`entries.py`): a digest of the rest, a header with the facts, and
the payload.  Reading trusts nothing: the owner and mode of the file, its digest and its facts are
checked before bytes are used.  A failure of the store - damage, a full disk, a folder that cannot
be written - is one `CacheWarning` and never a failure of a compilation.

`folder.py` writes a file under another name and renames it, so that a reader sees a whole entry or
none and nothing is locked.  If several processes need the same entry at once, one claims it and
the others wait for a bounded time (`claims.py`).  Entries are written by a thread after the
compilation (`keeping.py`).

    kind        subject                                           what a hit saves
    object      LLVM IR of a plan's kernels, or of their glue     LLVM, for the CPU
    ptx         LLVM IR of a GPU kernel                           LLVM, for a GPU
    cubin       the same, and the version of the assembler        LLVM and assembly, for a GPU
    program     a graph about to run, before its passes           passes, lowering, emission
    derivative  a graph that is differentiated                    differentiation, partition
    capture     a graph of Dynamo's                               capture

A new kind is a name and a payload: the facts and the reading of the last three are in
`adjoint.cache`, those of the first three where code is compiled (`runtime/cpu/engine.py`,
`runtime/gpu/assembly.py`).
"""
