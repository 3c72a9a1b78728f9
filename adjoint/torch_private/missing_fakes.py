"""Fakes that torch lacks, or has wrong: sizes that do not depend on data, or that do.

Importing this module registers them, for every fake mode.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten


@register_op_impl([aten._ctc_loss.default, aten._ctc_loss.Tensor])
def _ctc_loss(
    fake_mode: FakeTensorMode,
    op: Any,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One loss for each sequence, and a number for each time step and place among the targets.

    The places are the labels of the longest target with blanks around them.
    """
    batch = log_probs.shape[1:2]
    if isinstance(target_lengths, torch.Tensor):
        places: Any = _unknown(fake_mode)
    else:
        places = 2 * max(target_lengths, default=0) + 1
    with fake_mode:
        losses = log_probs.new_empty(batch)
        ways = log_probs.new_empty((*(batch or (1,)), log_probs.shape[0], places))
    return losses, ways


@register_op_impl([aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor])
def _ctc_loss_backward(
    fake_mode: FakeTensorMode, op: Any, cotangent: torch.Tensor, log_probs: torch.Tensor, *_: Any
) -> torch.Tensor:
    with fake_mode:
        return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _unique(
    fake_mode: FakeTensorMode,
    op: Any,
    x: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As many as there are; torch 2.11's own fake says that there is one."""
    with fake_mode:
        inverse = x.new_empty(x.shape if return_inverse else (0,), dtype=torch.int64)
        return x.new_empty((_unknown(fake_mode),)), inverse


if aten._unique.default not in op_implementations_dict:  # torch before 2.13
    register_op_impl(aten._unique.default)(_unique)


_torchs_split = decomposition_table[aten.split.Tensor]


def _split(x: torch.Tensor, size: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """Of nothing there is one part; torch 2.11 fails to say so, in two places."""
    if size and x.shape[dim] == 0:
        return (aten.slice.Tensor(x, dim, 0, 0),)
    return _torchs_split(x, size, dim)  # type: ignore[no-any-return]


def _split_of_fakes(fake_mode: FakeTensorMode, op: Any, *args: Any, **kwargs: Any) -> Any:
    with fake_mode:
        return _split(*args, **kwargs)


if torch.__version__ < "2.13":
    decomposition_table[aten.split.Tensor] = _split
    register_op_impl(aten.split.Tensor)(_split_of_fakes)


def _unknown(fake_mode: FakeTensorMode) -> torch.SymInt:
    assert fake_mode.shape_env is not None
    size = fake_mode.shape_env.create_unbacked_symint()
    torch._check(size >= 0)
    return size
