"""Names of kernels for profiles and reports: after the user's operators that they compute."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import fx

from adjoint.graph.metadata import grad_of

# Operators that a name lists; a kernel may compute hundreds.
MAX_NAMED_OPS = 5


def title_of(nodes: Iterable[fx.Node]) -> str:
    """Such as `fused_silu_mul_index_add`; an operator of a derivative is `silu_backward`."""
    names = list(dict.fromkeys(_operator_of(node) for node in nodes)) or ["partial_sums"]
    if len(names) == 1:
        return names[0]
    rest = len(names) - MAX_NAMED_OPS
    more = [f"and_{rest}_more"] if rest > 0 else []
    return "_".join(["fused", *names[:MAX_NAMED_OPS], *more])


def _operator_of(node: fx.Node) -> str:
    """The operator that the user wrote, if the node is a part of one or of its derivative."""
    owner = grad_of(node)
    if owner is not None:
        return f"{_bare(owner.op)}_backward"
    return _bare(str(node.meta.get("part_of", node.target)))


def _bare(operator: str) -> str:
    """`index_add` for `aten.index_add.default`: what may be a symbol of an object file."""
    parts = operator.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    return re.sub(r"\W+", "_", name).strip("_") or "kernel"
