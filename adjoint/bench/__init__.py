"""`adjoint bench`: the same work on eager torch, its compilers, JAX and adjoint, side by side.

A *workload* is what is computed, a *system* is who computes it. Each pair runs in fresh processes
with caches off (`schedule`), which make the step (`problems`, `workloads`, `jax_workloads`, `own`),
measure it and check its gradients (`measure`, `worker`). `results` takes medians, `table` and
`plot` show them. Steps whose sizes change (`sizes`), small functions whose time is mostly the
overhead of the call (`calls`) and models that adjoint was not tuned for (`zoo`) have tables of
their own.
"""

from adjoint.bench.command import add_command, run

__all__ = ["add_command", "run"]
