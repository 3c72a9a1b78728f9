"""The cross-entropy of a linear head, without all of its logits in memory.

    nll_loss(log_softmax(x @ w + bias), target)  =  linear_cross_entropy(x, w, bias, target)

The logits of a large vocabulary are the largest tensor of a language model, and eager has four of
their size: the logits, their logarithms of softmax, and the derivatives of both.  The operator
(`graph/losses.py`) computes a few rows at a time, and the gradients of the head with them, so the
number of matrix products stays the same.

* Logits that something else reads, such as the caller, are left alone.
* Logits of few bytes are left alone: kernels fuse what is between the products.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from adjoint.graph.losses import MEAN, SUM, linear_cross_entropy
from adjoint.graph.metadata import arguments_of, operand_of, tensor_of
from adjoint.graph.reachability import dependents
from adjoint.optimize.casts import CAST, is_cast
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.matching import arguments
from adjoint.rewrite.patterns import Match, Wildcard, call
from adjoint.rewrite.refreshing import RESHAPES
from adjoint.rewrite.rules import Replacement, Rule
from adjoint.torch_private.symbols import hint

aten = torch.ops.aten
NLL, LOG_SOFTMAX = aten.nll_loss_forward.default, aten._log_softmax.default
PRODUCTS = (aten.mm.default, aten.addmm.default)
RESHAPES_AND_COPIES = (*RESHAPES, aten.clone.default)

# By device: logits of fewer bytes are computed at once.  On a GPU chunks cost more: each is several
# kernels that read all of it.
MIN_LOGITS_BYTES = {"cpu": 64 << 20, "cuda": 4 << 30}

# With fewer inputs for each class, products take less time than what kernels fuse between them.
MIN_INPUTS_OF_CLASS = 256


def _rule(differentiated: set[str]) -> Rule:
    """`differentiated`: names of the nodes that have a derivative."""

    def chunk(match: Match) -> Replacement | None:
        loss = operand_of(match.root)
        if len(loss.users) != 1:
            return None  # The sum of weights is used as well.
        given = arguments(loss.target, loss.args, loss.kwargs)
        if given["reduction"] not in (MEAN, SUM):
            return None
        softmax = match.absorb(given["self"], LOG_SOFTMAX)
        logits, axis = arguments_of(softmax)[:2]
        value = tensor_of(softmax)
        if value.dim() != 2 or axis not in (1, -1) or not is_large(value):
            return None
        product = _product(match, logits)
        if product is None:
            return None
        *bias, x, w = arguments_of(product)
        if bias and (product.kwargs or tensor_of(bias[0]).dim() != 1):
            return None
        if hint(tensor_of(x).shape[1]) < MIN_INPUTS_OF_CLASS:
            return None
        classes = given["weight"]
        if classes is not None and classes.name in differentiated:
            return None
        operands = [x, w, bias[0] if bias else None]
        mask = [True, *(each is not None and each.name in differentiated for each in operands)]
        options = (classes, given["reduction"], given["ignore_index"], value.dtype, mask)
        both = call(linear_cross_entropy, *operands, given["target"], *options)
        return call(operator.getitem, both, 0)

    pattern = call(operator.getitem, call(NLL, Wildcard("rest"), ...), 0)
    return Rule("chunk-logits", (pattern,), chunk, (__doc__ or "").split("\n\n")[1].strip())


def is_large(logits: torch.Tensor) -> bool:
    size = hint(logits.numel()) * logits.itemsize
    return size >= MIN_LOGITS_BYTES.get(logits.device.type, size + 1)


def _product(match: Match, node: fx.Node) -> fx.Node | None:
    """The product that `node`, a matrix, is a reshape and perhaps a wider copy of."""
    shape = tensor_of(node).shape
    while node.target in RESHAPES_AND_COPIES or is_cast(node):
        if is_cast(node) and tensor_of(node).itemsize < tensor_of(operand_of(node)).itemsize:
            return None
        match.absorb(node, *RESHAPES_AND_COPIES, CAST)
        node = operand_of(node)
    product = match.absorb(node, *PRODUCTS)
    return product if tensor_of(product).shape == shape else None


def chunk_cross_entropy(graph_module: fx.GraphModule, wrt: Sequence[int] = ()) -> fx.GraphModule:
    """Compute the cross-entropy of a linear head with many classes a few rows at a time.

    `wrt`: positions of the inputs that are differentiated with respect to.
    """
    graph = graph_module.graph
    if not graph.find_nodes(op="call_function", target=NLL):
        return graph_module
    inputs = graph.find_nodes(op="placeholder")
    # By name: the engine works on a copy of the graph.
    names = {each.name for each in dependents(inputs[place] for place in wrt)}
    return rewrite(graph_module, [_rule(names)], "chunk-cross-entropy")
