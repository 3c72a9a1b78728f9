"""Atoms in periodic boxes, made by hand: what interatomic potentials are trained on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CUTOFF = 2.6
EDGE = 3.4  # of a box, before it is made oblique

# For each of the structures that a model is trained on, how many atoms are in each box.
SIZES: Sequence[Sequence[int]] = ((3, 2), (4, 6))


@dataclass(frozen=True)
class Boxes:
    """Several boxes of atoms, one after another."""

    kinds: Tensor
    """0 or 1 for each atom."""
    positions: Tensor
    cells: Tensor
    """One for each box; its rows are the vectors that it is spanned by."""
    batch: Tensor
    """The box of each atom."""
    pairs: Tensor
    """Two atoms of each pair within the cutoff, each pair in both directions."""
    images: Tensor
    """By how many vectors of the cell the second atom is to be moved."""

    @property
    def counts(self) -> Tensor:
        return torch.bincount(self.batch)

    @property
    def starts(self) -> Tensor:
        """Where each box starts, and the last one ends."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.counts.cumsum(0)])

    def shifts(self, cells: Tensor | None = None) -> Tensor:
        """By what the second atom of each pair is to be moved."""
        chosen = (self.cells if cells is None else cells)[self.batch[self.pairs[0]]]
        return torch.einsum("ni,nij->nj", self.images, chosen)

    @property
    def vectors(self) -> Tensor:
        """From the first atom of each pair to the second."""
        first, second = self.pairs
        return self.positions[second] - self.positions[first] + self.shifts()


def boxes(counts: Sequence[int], periodic: bool = True) -> Boxes:
    """Boxes with so many atoms each; `periodic=False`: atoms see none outside of theirs."""
    generator = torch.Generator().manual_seed(sum(counts))
    total = sum(counts)
    draw = torch.rand(total + 3 * len(counts), 3, generator=generator, dtype=torch.float64)
    cells = EDGE * torch.eye(3, dtype=torch.float64) + 0.3 * draw[total:].reshape(-1, 3, 3)
    # Corners of a lattice, moved a little, so that no two atoms are on top of each other.
    corners = torch.cartesian_prod(*3 * [torch.tensor([0.1, 0.6], dtype=torch.float64)])
    places = [corners[torch.randperm(8, generator=generator)[:count]] for count in counts]
    batch = torch.repeat_interleave(torch.tensor(counts))
    inside = torch.cat(places) + 0.1 * draw[:total]
    positions = torch.einsum("ni,nij->nj", inside, cells[batch])
    kinds = (torch.arange(total) % 3 == 0).long()
    pairs, images = _neighbours(positions, cells, batch, periodic)
    return Boxes(kinds, positions, cells, batch, pairs, images)


def _neighbours(
    positions: Tensor, cells: Tensor, batch: Tensor, periodic: bool
) -> tuple[Tensor, Tensor]:
    together = batch[:, None] == batch
    pairs, images = [], []
    for steps in itertools.product((-1, 0, 1) if periodic else (0,), repeat=3):
        image = torch.tensor(steps, dtype=positions.dtype)
        moved = positions + torch.einsum("i,nij->nj", image, cells[batch])
        near = together & (torch.cdist(positions, moved) < CUTOFF)
        if not any(steps):
            near.fill_diagonal_(False)
        found = near.nonzero().T
        pairs.append(found)
        images.append(image.expand(found.shape[1], 3))
    return torch.cat(pairs, 1), torch.cat(images)
