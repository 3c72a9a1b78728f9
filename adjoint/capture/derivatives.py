"""Derivatives that a program computes itself, by `torch.autograd.grad`.

They are traced through torch's own autograd, which knows what the program did.  What was computed
before the program began has a history that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.autograd.graph import Node

from adjoint.torch_private import trees


def passes_through(outputs: object, inputs: object, given: Iterable[Node]) -> bool:
    """Whether derivatives of `outputs` continue into the history of what the program was given.

    `inputs`: what is differentiated with respect to, where derivatives end.  `given`: the autograd
    nodes of the program's inputs.
    """
    ends = {each.grad_fn for each in _tensors(inputs)}
    beyond = set(given) - ends
    seen: set[Node] = set()
    work = [each.grad_fn for each in _tensors(outputs)]
    while work:
        node = work.pop()
        if node is None or node in seen or node in ends:
            continue
        if node in beyond:
            return True
        seen.add(node)
        work += [following for following, _ in node.next_functions]
    return False


def _tensors(tree: object) -> list[torch.Tensor]:
    return [leaf for leaf in trees.leaves(tree) if isinstance(leaf, torch.Tensor)]
