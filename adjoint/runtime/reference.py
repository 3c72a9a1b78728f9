"""The reference executor: a captured program, run op by op in eager torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adjoint.graph.captured import CapturedProgram
from adjoint.graph.evaluation import evaluate
from adjoint.open_types import TorchValue
from adjoint.runtime.calling import call
from adjoint.torch_private import trees


def run_flat(captured: CapturedProgram, given: Sequence[object]) -> list[TorchValue]:
    """The results of the program for the flat inputs `given`."""
    leaves = captured.leaves(given)
    return call(lambda inputs: evaluate(captured.graph_module, inputs), captured.calling, leaves)


def run(captured: CapturedProgram, *args: object, **kwargs: object) -> TorchValue:
    """Call a captured function with the reference executor.

    >>> import torch, adjoint
    >>> captured = adjoint.capture(lambda x: x * 2, torch.ones(2))
    >>> adjoint.run(captured, torch.tensor([3.0, 4.0]))
    tensor([6., 8.])
    """
    assert captured.signature is not None
    given, spec = trees.flatten((args, kwargs))
    if spec != captured.signature.in_spec:
        raise TypeError(f"captured for arguments {captured.signature.in_spec}, called with {spec}")
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    others = [leaf for leaf in given if not isinstance(leaf, torch.Tensor)]
    for (path, before), now in zip(captured.signature.constants, others, strict=True):
        if before is not now and (type(before) is not type(now) or before != now):
            raise TypeError(f"captured for {path} = {before!r}, called with {now!r}")
    leaves = captured.leaves(tensors)
    for place in captured.calling.placements:
        given_at = leaves[place.index]
        now = (given_at.storage_offset(), given_at.untyped_storage().nbytes())
        if now != (place.offset, place.nbytes):
            raise TypeError(
                f"captured for an input that begins at element {place.offset} of a memory of "
                f"{place.nbytes} bytes, called with one at {now[0]} of {now[1]}: as_strided or a "
                "write to shared memory looked at that"
            )
    return trees.unflatten(run_flat(captured, tensors), captured.signature.out_spec)
