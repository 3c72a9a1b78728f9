"""Which results of an op are differentiable, as torch's autograd decides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from adjoint.graph.leaves import requires_grad
from adjoint.torch_private import trees
from adjoint.torch_private.composites import by_torch_formula
from adjoint.torch_private.fake import CorrectedFakes, FakeTensorMode
from adjoint.torch_private.modes import enable_python_dispatcher
from adjoint.torch_private.operators import OpOverload

_KNOWN: dict[object, tuple[object, ...]] = {}


def differentiable_outputs(
    op: OpOverload,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    out: object,
    active: Sequence[object],
    fake_mode: FakeTensorMode,
) -> tuple[object, ...]:
    """For each result of a call with fake arguments, whether it depends differentiably on the
    `active` ones; for a list among the results, a list.  `out` is what the call returned.

    For example, eager gives the saved statistics of a normalization no derivative.
    """
    leaves, form = trees.leaves_and_structure((args, kwargs))
    wanted = {id(each) for each in active}
    # The length of a list of results depends on sizes, which are not part of the key otherwise.
    _, returned = trees.leaves_and_structure(out)
    key = (op, form, returned, tuple(_kind(leaf, wanted) for leaf in leaves))
    if key not in _KNOWN:

        def leaf(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            copy = value.detach()
            if copy.layout is torch.strided:
                # Strides have no influence here, and some fake kernels fail for unusual ones.
                copy = copy.contiguous()
            return copy.requires_grad_(id(value) in wanted)

        with (
            fake_mode,
            CorrectedFakes(),
            enable_python_dispatcher(),
            by_torch_formula(op),
            torch.enable_grad(),
        ):
            args, kwargs = trees.map_leaves(leaf, (args, kwargs))
            results = op(*args, **kwargs)
        several = results if isinstance(results, (tuple, list)) else (results,)
        _KNOWN[key] = tuple(trees.map_leaves(requires_grad, list(several)))
    return _KNOWN[key]


def _kind(leaf: object, wanted: set[int]) -> object:
    """What of an argument the answer may depend on: activity, and the value of flags and masks."""
    if isinstance(leaf, torch.Tensor):
        return ("tensor", id(leaf) in wanted)
    return (type(leaf), leaf) if isinstance(leaf, (bool, str, type(None))) else type(leaf)
