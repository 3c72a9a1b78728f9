"""Fake kernels that torch lacks, or whose result sizes are wrong.

Importing this module registers them for all fake modes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode

from adjoint.open_types import OpArgument
from adjoint.torch_private import symbols

aten = torch.ops.aten


@register_op_impl([aten._ctc_loss.default, aten._ctc_loss.Tensor])
def _ctc_loss(
    fake_mode: FakeTensorMode,
    op: object,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor | Sequence[int],
    target_lengths: torch.Tensor | Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss for each sequence, and log alpha for each time step and position.

    Positions are the labels of the longest target with blanks before, between and after them.
    """
    batch = log_probs.shape[1:2]
    if isinstance(target_lengths, torch.Tensor):
        assert fake_mode.shape_env is not None
        # Dynamo traces `ctc_loss`, which does not return log alpha and so does not define the size.
        with fake_mode.shape_env.ignore_fresh_unbacked_symbols():
            positions: int | torch.SymInt = _unbacked_size(fake_mode)
    else:
        positions = 2 * max(target_lengths, default=0) + 1
    with fake_mode:
        losses = log_probs.new_empty(batch)
        log_alpha = log_probs.new_empty((*(batch or (1,)), log_probs.shape[0], positions))
    return losses, log_alpha


@register_op_impl([aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor])
def _ctc_loss_backward(
    fake_mode: FakeTensorMode,
    op: object,
    cotangent: torch.Tensor,
    log_probs: torch.Tensor,
    *_: object,
) -> torch.Tensor:
    with fake_mode:
        return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _unique(
    fake_mode: FakeTensorMode,
    op: object,
    x: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A data-dependent number of values; the fake of torch 2.11 says that there is one."""
    with fake_mode:
        inverse = x.new_empty(x.shape if return_inverse else (0,), dtype=torch.int64)
        return x.new_empty((_unbacked_size(fake_mode),)), inverse


if aten._unique.default not in op_implementations_dict:  # torch before 2.13
    register_op_impl(aten._unique.default)(_unique)


_torchs_split = decomposition_table[aten.split.Tensor]


def _split(x: torch.Tensor, size: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """An empty axis has one part; in torch 2.11, decomposition and fake both fail for it."""
    if size and x.shape[dim] == 0:
        return (aten.slice.Tensor(x, dim, 0, 0),)
    return _torchs_split(x, size, dim)  # type: ignore[no-any-return]


def _split_of_fakes(
    fake_mode: FakeTensorMode, op: object, *args: OpArgument, **kwargs: OpArgument
) -> object:
    with fake_mode:
        return _split(*args, **kwargs)


if torch.__version__ < "2.13":
    decomposition_table[aten.split.Tensor] = _split
    register_op_impl(aten.split.Tensor)(_split_of_fakes)


def _unbacked_size(fake_mode: FakeTensorMode) -> torch.SymInt:
    assert fake_mode.shape_env is not None
    return symbols.unbacked_size(fake_mode.shape_env)
