"""Operators that are several loops: what they compute, as torch programs of simpler operators.

Statistics are taken in two passes, mean first, which is stable; half types are computed in float32
and rounded at the end, as eager's kernels do.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import GraphCopy
from adjoint.graph.origins import for_part_of, inherit
from adjoint.lower.sizes import same, sizes
from adjoint.torch_private import trees
from adjoint.torch_private.fake import fake_call, fake_mode_of
from adjoint.torch_private.modes import TorchDispatchMode

aten = torch.ops.aten

Program = Callable[..., Any]

DECOMPOSITIONS: dict[Any, Program] = {}


class Declined(Exception):
    """Not for these arguments: the operator is called as it is."""


def decomposition(*ops: Any) -> Callable[[Program], Program]:
    def register(program: Program) -> Program:
        DECOMPOSITIONS.update(dict.fromkeys(ops, program))
        return program

    return register


@works_on("node")
def decompose(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph with operators of `DECOMPOSITIONS` replaced."""
    return rewrite(graph_module, lambda node: DECOMPOSITIONS.get(node.target))


def rewrite(
    graph_module: fx.GraphModule,
    program_of: Callable[[fx.Node], Program | None],
    used: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """A copy of the graph with nodes replaced by what programs for them do.

    `used`: nodes whose values programs use besides their arguments.
    """
    copy = GraphCopy(graph_module)
    several: dict[fx.Node, list[fx.Node | None]] = {}
    fake_mode = fake_mode_of(graph_module)
    for node in graph_module.graph.nodes:
        if node.target is operator.getitem and node.args[0] in several:
            part = several[node.args[0]][node.args[1]]
            assert part is not None
            inherit(part, node)
            copy.copies[node] = part
            continue
        program = program_of(node)
        if program is not None:
            found = _expanded(copy, node, program, fake_mode, used)
            if isinstance(found, fx.Node):
                inherit(found, node)
                copy.copies[node] = found
                continue
            if found is not None:
                several[node] = found
                continue
        copy.add(node)
    return copy.finish()


def _expanded(
    copy: GraphCopy,
    node: fx.Node,
    program: Program,
    fake_mode: Any,
    used: Sequence[fx.Node],
) -> fx.Node | list[fx.Node | None] | None:
    """The nodes that hold the results of `program`; None if it will not do."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    shapes: list[Any] = [value.shape for value in values if isinstance(value, torch.Tensor)]
    if any(isinstance(size, int) and size == 0 for shape in shapes for size in shape):
        return None
    graph = copy.graph
    recorder = _Recorder(graph, for_part_of(node, None))
    for each in (*node.all_input_nodes, *used):
        recorder.nodes[id(each.meta["val"])] = copy.copies[each]
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    start = len(graph.nodes)
    with fake_mode, recorder, torch.no_grad():
        try:
            results = program(*args, **kwargs)
        except Declined:
            results = None
    expected = node.meta["val"]
    if results is None or not _alike(results, expected):
        for extra in reversed(list(graph.nodes)[start:]):
            graph.erase_node(extra)
        return None
    if isinstance(results, torch.Tensor):
        return recorder.nodes[id(results)]
    return [None if each is None else recorder.nodes[id(each)] for each in results]


def _alike(results: Any, expected: Any) -> bool:
    pairs = list(zip(trees.leaves(results), trees.leaves(expected), strict=False))
    return all(
        one is None
        or other is None
        or (one.dtype == other.dtype and _shaped_alike(one, other) and _laid_alike(one, other))
        for one, other in pairs
    )


def _shaped_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    mine, theirs = sizes(one.shape), sizes(other.shape)
    return len(mine) == len(theirs) and all(map(same, mine, theirs))


def _laid_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    axes = zip(one.shape, sizes(one.stride()), sizes(other.stride()), strict=True)
    return all(same(a, b) or is_short(size, 1) for size, a, b in axes)


class _Recorder(TorchDispatchMode):
    """Writes down the operators that a program calls on fake tensors."""

    def __init__(self, graph: fx.Graph, meta: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.meta = {key: value for key, value in meta.items() if key != "val"}
        self.nodes: dict[int, fx.Node] = {}
        self.kept: list[Any] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = fake_call(op, args, kwargs or {})

        def leaf(value: Any) -> Any:
            return self.nodes[id(value)] if isinstance(value, torch.Tensor) else value

        node_args, node_kwargs = trees.map_leaves(leaf, (args, kwargs or {}))
        node = self.graph.call_function(op)
        # Symbolic sizes stay among the arguments; `call_function` would have them be nodes.
        node.args, node.kwargs = node_args, node_kwargs
        node.meta = {**self.meta, "val": result}
        self.kept.append(result)
        if isinstance(result, torch.Tensor):
            self.nodes[id(result)] = node
        elif isinstance(result, (tuple, list)):
            for place, each in enumerate(result):
                if isinstance(each, torch.Tensor):
                    part = self.graph.call_function(operator.getitem, (node, place))
                    part.meta = {**self.meta, "val": each}
                    self.nodes[id(each)] = part
        return result


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _real(*tensors: Any) -> None:
    if any(t is not None and not t.dtype.is_floating_point for t in tensors):
        raise Declined


# Products with something added: what is added joins the loops around.


@decomposition(aten.addmm.default)
def _addmm(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if beta != 1 or alpha != 1 or not bias.dtype.is_floating_point:
        raise Declined
    # A half product rounds once, after the sum.
    if bias.dtype in (torch.float16, torch.bfloat16):
        raise Declined
    try:
        product = _mm(x, y)
    except Declined:
        product = torch.mm(x, y)
    return product + bias


# Products with a side this short are loops that fuse with those around them.
SHORT = 4


@decomposition(aten.mm.default)
def _mm(x: Any, y: Any) -> Any:
    if x.dtype not in (torch.float32, torch.float64):
        raise Declined
    rows, inner, columns = x.shape[0], x.shape[1], y.shape[1]
    if 0 in (rows, inner, columns):
        raise Declined
    if is_short(inner):
        parts = [x.select(1, k).unsqueeze(1) * y.select(0, k) for k in range(inner)]
        return functools.reduce(operator.add, parts)
    if is_short(columns):
        sums = [(x * y.select(1, n)).sum(1, keepdim=True) for n in range(columns)]
        return sums[0] if columns == 1 else torch.cat(sums, 1)
    if is_short(rows):
        sums = [(x.select(0, m).unsqueeze(1) * y).sum(0, keepdim=True) for m in range(rows)]
        return sums[0] if rows == 1 else torch.cat(sums, 0)
    raise Declined


def is_short(size: Any, most: int = SHORT) -> bool:
    return isinstance(size, int) and size <= most


@decomposition(aten.baddbmm.default)
def _baddbmm(bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if beta == 0 or bias.dtype not in (torch.float32, torch.float64):
        raise Declined
    product = torch.bmm(x, y)
    return (product if alpha == 1 else product * alpha) + (bias if beta == 1 else bias * beta)


# Softmax


@decomposition(aten._softmax.default)
def _softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    _real(x)
    if x.dim() == 0:
        raise Declined
    wide = _wide(x)
    e = (wide - wide.amax(dim, keepdim=True)).exp()
    return (e / e.sum(dim, keepdim=True)).to(torch.float32 if half_to_float else x.dtype)


@decomposition(aten._log_softmax.default)
def _log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    _real(x)
    if x.dim() == 0:
        raise Declined
    wide = _wide(x)
    shifted = wide - wide.amax(dim, keepdim=True)
    result = shifted - shifted.exp().sum(dim, keepdim=True).log()
    return result.to(torch.float32 if half_to_float else x.dtype)


@decomposition(aten._softmax_backward_data.default)
def _softmax_backward(cotangent: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    _real(y)
    if y.dim() == 0:
        raise Declined
    g, wide = _wide(cotangent), _wide(y)
    return (wide * (g - (g * wide).sum(dim, keepdim=True))).to(dtype)


@decomposition(aten._log_softmax_backward_data.default)
def _log_softmax_backward(cotangent: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    _real(y)
    if y.dim() == 0:
        raise Declined
    g, wide = _wide(cotangent), _wide(y)
    return (g - wide.exp() * g.sum(dim, keepdim=True)).to(dtype)


@decomposition(aten.logsumexp.default)
def _logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    _real(x)
    if x.dim() == 0:
        raise Declined
    highest = x.amax(dim, keepdim=True)
    safe = torch.where(highest.abs() == math.inf, torch.zeros_like(highest), highest)
    total = (x - safe).exp().sum(dim, keepdim=True).log() + safe
    return total if keepdim else total.squeeze(dim)


# Normalizations


@decomposition(aten.native_layer_norm.default)
def _layer_norm(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    _real(x)
    if not x.is_contiguous() or x.numel() == 0:
        raise Declined
    axes = list(range(x.dim() - len(normalized_shape), x.dim()))
    wide = _wide(x)
    mean = wide.mean(axes, keepdim=True)
    centered = wide - mean
    rstd = ((centered * centered).mean(axes, keepdim=True) + eps).rsqrt()
    y = centered * rstd
    y = y if weight is None else y * _wide(weight)
    y = y if bias is None else y + _wide(bias)
    return y.to(x.dtype), mean, rstd


@decomposition(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    cotangent: Any,
    x: Any,
    normalized_shape: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Any,
) -> Any:
    _real(x)
    if not x.is_contiguous() or x.numel() == 0:
        raise Declined
    first = x.dim() - len(normalized_shape)
    axes, rest = list(range(first, x.dim())), list(range(first))
    g, wide = _wide(cotangent), _wide(x)
    normal = (wide - mean) * rstd
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * _wide(weight)
        along = (weighted * normal).mean(axes, keepdim=True)
        of_x = ((weighted - weighted.mean(axes, keepdim=True) - normal * along) * rstd).to(x.dtype)
    if output_mask[1]:
        of_weight = ((g * normal).sum(rest) if rest else g * normal).to(weight.dtype)
    if output_mask[2]:
        of_bias = (g.sum(rest) if rest else g.clone()).to(cotangent.dtype)
    return of_x, of_weight, of_bias


@decomposition(aten._fused_rms_norm.default)
def _rms_norm(x: Any, normalized_shape: Any, weight: Any, eps: float | None) -> Any:
    _real(x)
    axes = list(range(x.dim() - len(normalized_shape), x.dim()))
    wide = _wide(x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    rstd = ((wide * wide).mean(axes, keepdim=True) + eps).rsqrt()
    y = wide * rstd
    return (y if weight is None else y * _wide(weight)).to(x.dtype), rstd


def _channels(weight: Any, group: int) -> Any:
    return _wide(weight).reshape(group, weight.shape[0] // group, 1)


@decomposition(aten.native_group_norm.default)
def _group_norm(
    x: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> Any:
    _real(x)
    if not x.is_contiguous() or x.numel() == 0:
        raise Declined
    wide = _wide(x).reshape(N, group, C // group, HxW)
    mean = wide.mean([2, 3], keepdim=True)
    centered = wide - mean
    rstd = ((centered * centered).mean([2, 3], keepdim=True) + eps).rsqrt()
    y = centered * rstd
    y = y if weight is None else y * _channels(weight, group)
    y = y if bias is None else y + _channels(bias, group)
    return y.reshape(x.shape).to(x.dtype), mean.reshape(N, group), rstd.reshape(N, group)


@decomposition(aten.native_group_norm_backward.default)
def _group_norm_backward(
    cotangent: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    output_mask: Any,
) -> Any:
    _real(x)
    if not (x.is_contiguous() and cotangent.is_contiguous()) or x.numel() == 0:
        raise Declined
    shape = (N, group, C // group, HxW)
    g, wide = _wide(cotangent).reshape(shape), _wide(x).reshape(shape)
    mean, rstd = (_wide(each).reshape(N, group, 1, 1) for each in (mean, rstd))
    normal = (wide - mean) * rstd
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        weighted = g if weight is None else g * _channels(weight, group)
        along = (weighted * normal).mean([2, 3], keepdim=True)
        of_x = (weighted - weighted.mean([2, 3], keepdim=True) - normal * along) * rstd
        of_x = of_x.reshape(x.shape).to(x.dtype)
    # Sums over places of each channel first, and then over the few samples: both run along memory.
    if output_mask[1] and weight is not None:
        of_weight = (g * normal).sum(3).sum(0).reshape(weight.shape).to(weight.dtype)
    if output_mask[2]:
        of_bias = g.sum(3).sum(0).reshape([C]).to(x.dtype)
    return of_x, of_weight, of_bias


def _unbiased(x: Any, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    _real(x)
    if x.dim() == 0:
        raise Declined
    axes = list(range(x.dim())) if dim is None or dim == [] else [d % x.dim() for d in dim]
    count = math.prod(x.shape[axis] for axis in axes)
    correction = 1 if correction is None else correction
    if not isinstance(count, int) or count <= correction:
        raise Declined
    wide = _wide(x)
    mean = wide.mean(axes, keepdim=True)
    centered = wide - mean
    variance = (centered * centered).sum(axes, keepdim=keepdim) / (count - correction)
    return variance, mean if keepdim else mean.squeeze(axes)


@decomposition(aten.var.correction)
def _var(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _unbiased(x, dim, correction, keepdim)[0].to(x.dtype)


@decomposition(aten.std.correction)
def _std(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return _unbiased(x, dim, correction, keepdim)[0].sqrt().to(x.dtype)


@decomposition(aten.var_mean.correction)
def _var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    variance, mean = _unbiased(x, dim, correction, keepdim)
    return variance.to(x.dtype), mean.to(x.dtype)


@decomposition(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    _real(x)
    if dtype is not None or x.numel() == 0:
        raise Declined
    wide = _wide(x)
    axes = list(range(x.dim())) if dim is None else dim
    if ord == 2:
        return (wide * wide).sum(axes, keepdim=keepdim).sqrt().to(x.dtype)
    if ord == 1:
        return wide.abs().sum(axes, keepdim=keepdim).to(x.dtype)
    if ord == math.inf:
        return wide.abs().amax(axes, keepdim=keepdim).to(x.dtype)
    raise Declined


# Losses


@decomposition(aten.nll_loss_forward.default)
def _nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    _real(x)
    if x.dim() != 2 or weight is not None or x.dtype not in (torch.float32, torch.float64):
        raise Declined
    counts = target != ignored
    safe = torch.where(counts, target, torch.zeros_like(target))
    picked = x.gather(1, safe.unsqueeze(1)).squeeze(1)
    losses = torch.where(counts, -picked, torch.zeros_like(picked))
    total = counts.sum().to(x.dtype)
    if reduction == 0:
        return losses, torch.zeros([], dtype=x.dtype, device=x.device)
    return (losses.sum() / total if reduction == 1 else losses.sum()), total


@decomposition(aten.nll_loss_backward.default)
def _nll_loss_backward(
    cotangent: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any
) -> Any:
    if x.dim() != 2 or weight is not None or x.dtype not in (torch.float32, torch.float64):
        raise Declined
    counts = (target != ignored).unsqueeze(1)
    scale = cotangent / total if reduction == 1 else cotangent
    scale = scale.unsqueeze(1) if reduction == 0 else scale
    classes = torch.arange(x.shape[1], device=x.device)
    chosen = (classes == target.unsqueeze(1)) & counts
    return torch.where(chosen, -scale, torch.zeros([], dtype=x.dtype, device=x.device))


@decomposition(aten.mse_loss.default)
def _mse_loss(x: Any, y: Any, reduction: int = 1) -> Any:
    _real(x, y)
    gap = x - y
    return _reduced(gap * gap, reduction)


@decomposition(aten.smooth_l1_loss.default)
def _smooth_l1_loss(x: Any, y: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    _real(x, y)
    gap = (x - y).abs()
    if beta == 0:
        return _reduced(gap, reduction)
    return _reduced(torch.where(gap < beta, 0.5 * gap * gap / beta, gap - 0.5 * beta), reduction)


@decomposition(aten.huber_loss.default)
def _huber_loss(x: Any, y: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    _real(x, y)
    gap = (x - y).abs()
    near = 0.5 * gap * gap
    return _reduced(torch.where(gap <= delta, near, delta * (gap - 0.5 * delta)), reduction)


@decomposition(aten.binary_cross_entropy_with_logits.default)
def _bce_with_logits(
    x: Any, y: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Any:
    _real(x, y)
    if pos_weight is not None:
        raise Declined
    loss = (1 - y) * x + (-x).clamp_min(0) + torch.log1p(torch.exp(-x.abs()))
    return _reduced(loss if weight is None else loss * weight, reduction)


def _reduced(losses: Any, reduction: int) -> Any:
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


# Pieces


@decomposition(aten.stack.default)
def _stack(tensors: Any, dim: int = 0) -> Any:
    dim = dim % (tensors[0].dim() + 1)
    return torch.cat([each.unsqueeze(dim) for each in tensors], dim)


@decomposition(aten._unsafe_index.Tensor)
def _unsafe_index(x: Any, indices: Any) -> Any:
    return aten.index.Tensor(x, indices)


@decomposition(aten.glu.default)
def _glu(x: Any, dim: int = -1) -> Any:
    _real(x)
    left, right = x.chunk(2, dim)
    return left * right.sigmoid()


@decomposition(aten.log_sigmoid_forward.default)
def _log_sigmoid(x: Any) -> Any:
    _real(x)
    wide = _wide(x)
    e = torch.exp(-wide.abs())
    return (wide.clamp_max(0) - torch.log1p(e)).to(x.dtype), e.to(x.dtype)
