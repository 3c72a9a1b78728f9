"""Collectives: the derivative of the sum of all ranks' losses.

A value that was sent to several ranks receives cotangents from each of them, so that the
derivative of a collective is a collective.  All ranks run the same ones in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import Cotangents, vjp
from adjoint.torch_private.groups import rank_in

AVAILABLE = torch.distributed.is_available()


def _all_reduce(x: Tensor, reduce_op: str, group_name: str) -> Tensor:
    ops = torch.ops._c10d_functional
    done: Tensor = ops.wait_tensor.default(
        ops.all_reduce.default(x.contiguous(), reduce_op, group_name)
    )
    return done


def wait_tensor(cotangent: Tensor, out: Tensor, x: Tensor) -> Cotangents:
    """The identity."""
    return (cotangent,)


def all_reduce(
    cotangent: Tensor, out: Tensor, x: Tensor, reduce_op: str, group_name: str
) -> Cotangents:
    """The cotangents of all ranks' results, reduced in turn."""
    if reduce_op in ("sum", "avg"):
        return (_all_reduce(cotangent, reduce_op, group_name),)
    total = _all_reduce(cotangent, "sum", group_name)
    if reduce_op in ("max", "min"):
        # Ranks that attain the extremum share equally.
        attains = (x == out).to(x.dtype)
        return (total * attains / _all_reduce(attains, "sum", group_name),)
    if reduce_op == "product":
        zero = x == 0
        zeros = _all_reduce(zero.to(x.dtype), "sum", group_name)
        others = _all_reduce(x.masked_fill(zero, 1), "product", group_name)
        alone = torch.where(zero, others, 0)
        rest = torch.where(zeros == 1, alone, 0)
        return (total * torch.where(zeros == 0, others / x.masked_fill(zero, 1), rest),)
    raise NotImplementedError(f"all_reduce by {reduce_op}")


def all_gather(
    cotangent: Tensor, out: Tensor, x: Tensor, group_size: int, group_name: str
) -> Cotangents:
    """Reduce-scatter: the sum of all ranks' cotangents of this rank's part."""
    ops = torch.ops._c10d_functional
    reduced = ops.reduce_scatter_tensor.default(
        cotangent.contiguous(), "sum", group_size, group_name
    )
    return (ops.wait_tensor.default(reduced),)


def reduce_scatter(
    cotangent: Tensor, out: Tensor, x: Tensor, reduce_op: str, group_size: int, group_name: str
) -> Cotangents:
    """All-gather: every rank's part of the cotangent."""
    if reduce_op not in ("sum", "avg"):
        raise NotImplementedError(f"reduce_scatter by {reduce_op}")
    ops = torch.ops._c10d_functional
    gathered = ops.all_gather_into_tensor.default(cotangent.contiguous(), group_size, group_name)
    whole = ops.wait_tensor.default(gathered)
    return (whole / group_size if reduce_op == "avg" else whole,)


def all_to_all(
    cotangent: Tensor,
    out: Tensor,
    x: Tensor,
    output_split_sizes: Sequence[int],
    input_split_sizes: Sequence[int],
    group: str,
) -> Cotangents:
    """All-to-all with the split sizes exchanged."""
    ops = torch.ops._c10d_functional
    sent = ops.all_to_all_single.default(
        cotangent.contiguous(), input_split_sizes, output_split_sizes, group
    )
    return (ops.wait_tensor.default(sent),)


def broadcast(cotangent: Tensor, out: Tensor, x: Tensor, src: int, group_name: str) -> Cotangents:
    """The source rank receives the sum; the values of other ranks were not used."""
    total = _all_reduce(cotangent, "sum", group_name)
    return (total if rank_in(group_name) == src else torch.zeros_like(total),)


if AVAILABLE:
    _ops = torch.ops._c10d_functional
    vjp(_ops.wait_tensor.default)(wait_tensor)
    vjp(_ops.all_reduce.default)(all_reduce)
    vjp(_ops.all_gather_into_tensor.default)(all_gather)
    vjp(_ops.reduce_scatter_tensor.default)(reduce_scatter)
    vjp(_ops.all_to_all_single.default)(all_to_all)
    vjp(_ops.broadcast.default)(broadcast)
