"""The bias of a convolution on a GPU, added by a kernel of ours.

    convolution(x, w, bias)  =  convolution(x, w) + bias

The library adds the bias in a separate kernel, and sums the gradient of the bias in another.
Outside of the convolution both fuse with the operators around them. Rounding is as in the library:
the result of the convolution is rounded before the bias is added.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.graph.metadata import tensor_of
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match, Rest, Wildcard, call
from adjoint.rewrite.rules import Replacement, rewrites

aten = torch.ops.aten
x, w, bias, rest = Wildcard("x"), Wildcard("w"), Wildcard("bias"), Rest("rest")


@rewrites(call(aten.convolution.default, x, w, bias, rest))
def add_bias_apart(
    x: fx.Node, w: fx.Node, bias: object, rest: tuple[object, ...], match: Match
) -> Replacement | None:
    """convolution(x, w, bias) = convolution(x, w) + bias"""
    image = tensor_of(match.root)
    if not isinstance(bias, fx.Node) or not adds_bias_apart(image):
        return None
    axes = [1] * (image.dim() - 2)
    added = call(aten.view.default, bias, [tensor_of(bias).shape[0], *axes])
    return call(aten.add.Tensor, call(aten.convolution.default, x, w, None, *rest), added)


def adds_bias_apart(image: torch.Tensor) -> bool:
    """Whether the library adds a bias after it has rounded the result of the convolution."""
    return image.device.type == "cuda"


RULES = (add_bias_apart,)


def split_convolution_bias(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Add the bias of convolutions on a GPU by an operator of its own."""
    return rewrite(graph_module, RULES, "split-convolution-bias")
