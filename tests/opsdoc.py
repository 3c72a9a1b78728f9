"""`docs/ops.md`: each op, by which rule it is differentiated, and what the tests verify of it.

`python -m tests.opsdoc` writes it.  Nothing in it is claimed: an op is verified as far as the
tables of the tests go in which a captured program contains it on a differentiable path.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

import adjoint
from adjoint.differentiate.activity import active_nodes
from adjoint.errors import CaptureError
from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE, VJPS
from adjoint.runtime.calling import graph_inputs
from adjoint.torch_private.operators import OpOverload
from tests.differentiate.test_opinfo import (
    EXCEPTIONS,
    READS_DATA,
    SAMPLES,
    call,
    name_of,
    ops_of,
    unseeded,
)
from tests.rules.test_closure import ROWS
from tests.transforms.test_opinfo import FORWARD_EXCEPTIONS

FILE = Path(__file__).parent.parent / "docs" / "ops.md"

HEAD = """# Ops

Written by `python -m tests.opsdoc`; do not edit. The columns:

- **rule**: *own* is a vector-Jacobian product of ours, in `adjoint/rules/<family>.py`; a
  *composition* is the op in terms of ops that have one; *traced* is torch's formula for the op,
  traced when it is needed; *none* is no derivative by definition.
- **reverse**: the highest order of reverse mode that these tables compare with eager (with finite
  differences where eager has none), in float64.  Backward ops and collectives have tests of their
  own in `tests/rules`, which are no tables.
- **forward**: whether `jvp`, `jacfwd` and `hvp` are compared with `torch.func`.
- **by**: the entry of torch's op database, or the row of `tests/rules`, in whose program it is.

| op | rule | reverse | forward | by |
|---|---|---|---|---|
"""


@dataclass
class Verified:
    """What the tests verify of one op."""

    forward: bool = False
    by: set[str] = field(default_factory=set)


def rule_of(op: Any) -> str:
    """Which rule the reverse sweep takes."""
    if op in NON_DIFFERENTIABLE:
        return "none"
    if op in VJPS:
        return f"own: {_family(VJPS[op])}"
    if op in COMPOSITIONS:
        return f"composition: {_family(COMPOSITIONS[op])}"
    return "traced"


def _family(rule: Callable[..., Any]) -> str:
    return rule.__module__.rpartition(".")[2]


def ops_on_path(function: Callable[..., Any], inputs: list[Any]) -> set[OpOverload]:
    """The ops of the captured program through which a derivative flows."""
    try:
        captured = adjoint.capture(function, *inputs)
    except CaptureError:
        return set()
    module = captured.graph_module
    tensors = [x for x in _pytree.tree_leaves(inputs) if isinstance(x, torch.Tensor)]
    values = graph_inputs(captured.calling, captured.leaves(tensors))
    needed = [
        place
        for place, value in enumerate(values)
        if isinstance(value, torch.Tensor) and value.requires_grad
    ]
    return {n.target for n in active_nodes(module, needed) if isinstance(n.target, OpOverload)}


def of_database(ops: Iterable[Any]) -> Iterator[tuple[str, bool, set[OpOverload]]]:
    """Of entries of torch's op database: name, whether forward mode is verified, and ops."""
    for op in ops:
        name = name_of(op)
        if name in EXCEPTIONS or name in READS_DATA:
            continue
        torch.manual_seed(0)
        samples = op.sample_inputs("cpu", torch.float64, requires_grad=True)
        for sample in itertools.islice(samples, SAMPLES):
            leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
            places = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
            function = functools.partial(call, op, sample, spec, leaves, places)
            with unseeded():
                found = ops_on_path(function, [leaves[place] for place in places])
            yield name, name not in FORWARD_EXCEPTIONS, found


def of_rows() -> Iterator[tuple[str, bool, set[OpOverload]]]:
    """Of the rows of the rules' own tests, which are of reverse mode."""
    for row in ROWS:
        inputs: list[Any] = row.inputs()
        yield f"row {row.name}", False, ops_on_path(row.function, inputs)


def verified(
    entries: Iterable[tuple[str, bool, set[OpOverload]]],
) -> dict[OpOverload, Verified]:
    """What the tests verify, by op."""
    found: dict[OpOverload, Verified] = defaultdict(Verified)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ops that are deprecated, in beta, or ask for arguments.
        for name, forward, ops in entries:
            for op in ops:
                found[op].forward |= forward
                found[op].by.add(name)
    return found


def rows(found: dict[OpOverload, Verified]) -> dict[str, str]:
    """The line of each op that has a rule of ours, or that a test differentiates."""
    known: set[Any] = {*VJPS, *COMPOSITIONS, *NON_DIFFERENTIABLE, *found}
    return {str(op): _row(op, found.get(op, Verified())) for op in sorted(known, key=str)}


def _row(op: Any, of: Verified) -> str:
    rule = rule_of(op)
    if rule == "none":
        return f"| `{op}` | none | | | |"
    if not of.by:
        return f"| `{op}` | {rule} | not in these tables | | |"
    first, *others = sorted(of.by)
    by = first if not others else f"{first}, {len(others)} more"
    return f"| `{op}` | {rule} | 2 | {'yes' if of.forward else 'no'} | {by} |"


def text() -> str:
    """The whole file."""
    entries = itertools.chain(of_database(ops_of(torch.float64)), of_rows())
    return HEAD + "".join(f"{line}\n" for line in rows(verified(entries)).values())


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(text())
