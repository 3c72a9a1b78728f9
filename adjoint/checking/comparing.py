"""Comparing results with eager's: equal but for rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx

from adjoint.graph.metadata import value_or_none
from adjoint.torch_private import trees

# Relative to |value| plus the root mean square of its tensor.  Sums in another order round
# otherwise.
TOLERANCE = {
    torch.complex128: 1e-9,
    torch.float64: 1e-9,
    torch.complex64: 1e-4,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


@dataclass(frozen=True)
class Mismatch:
    """Two results that are not the same."""

    place: int
    """Which of the results."""
    difference: float
    """Relative, as `TOLERANCE` is; infinite if shapes, dtypes or kinds differ."""
    index: tuple[int, ...] = ()
    """The element that differs most."""
    found: str = ""
    expected: str = ""

    def __str__(self) -> str:
        where = f" at {list(self.index)}" if self.index else ""
        return f"{self.found} instead of {self.expected}{where}"


def tolerance_of(graph_module: fx.GraphModule) -> float:
    """What the dtypes inside of a graph allow: a float32 result may be made of bfloat16."""
    values = [leaf for n in graph_module.graph.nodes for leaf in trees.leaves(value_or_none(n))]
    dtypes = {each.dtype for each in values if isinstance(each, torch.Tensor)}
    return max((TOLERANCE.get(each, 0.0) for each in dtypes), default=0.0)


def compare(
    found: Sequence[object], expected: Sequence[object], tolerance: float = 0.0
) -> Mismatch | None:
    """The first pair that differs by more than rounding explains; None if there is none.

    `tolerance`: a difference that rounding explains, besides that of the dtype.
    """
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        mismatch = compare_one(mine, theirs, place, tolerance)
        if mismatch is not None:
            return mismatch
    return None


def compare_one(
    found: object, expected: object, place: int = 0, tolerance: float = 0.0
) -> Mismatch | None:
    """How two results differ; None: they are the same but for rounding."""
    if not isinstance(found, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
            return compare(found, expected, tolerance)
        is_same = found is expected or (type(found) is type(expected) and found == expected)
        return None if is_same else Mismatch(place, float("inf"), (), str(found), str(expected))
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return Mismatch(place, float("inf"), (), _kind(found), _kind(expected))
    if found.numel() == 0 or found.layout is not torch.strided:
        return None
    with torch.no_grad():
        distance = _distance(found.detach(), expected.detach())
        worst = int(distance.argmax())
    largest = float(distance.flatten()[worst])
    allowed = TOLERANCE.get(found.dtype, 0.0)
    # Integers are exact, whatever is beside them.
    if largest <= (max(allowed, tolerance) if allowed else 0.0):
        return None
    index = tuple(int(each) for each in torch.unravel_index(torch.tensor(worst), found.shape))
    return Mismatch(place, largest, index, _shown(found[index]), _shown(expected[index]))


def _distance(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How far each element is from what is expected, relatively; infinity if one is not finite."""
    if not found.is_floating_point() and not found.is_complex():
        return (
            (found != expected).double() * float("inf")
            if (found != expected).any()
            else (torch.zeros(found.shape, dtype=torch.float64, device=found.device))
        )
    wide = torch.complex128 if found.is_complex() else torch.float64
    one, other = found.to(wide), expected.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    finite = torch.where(other.isfinite(), other, torch.zeros_like(other)).abs()
    scale = other.abs() + finite.square().mean().sqrt() + torch.finfo(found.dtype).tiny
    distance = torch.where(same, 0.0, (one - other).abs() / scale)
    return torch.where(same | (one.isfinite() & other.isfinite()), distance, float("inf"))


def _kind(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _shown(element: torch.Tensor) -> str:
    return f"{element.item():.9g}" if element.is_floating_point() else str(element.item())
