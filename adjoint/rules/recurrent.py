"""Fused kernels of recurrent cells."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from adjoint.rules.registry import Cotangents, composition, vjp

aten = torch.ops.aten


@vjp(aten._thnn_fused_gru_cell.default)
def fused_gru_cell(
    cotangent: tuple[Tensor, None],
    out: Sequence[Tensor],
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Cotangents:
    """In ordinary ops: the workspace that the backward kernel takes has no derivative."""
    x, h = input_gates, hidden_gates
    if input_bias is not None and hidden_bias is not None:
        x, h = x + input_bias, h + hidden_bias
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, 1), h.chunk(3, 1)
    reset, update = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    new = (xn + reset * hn).tanh()
    return _gru_cotangents(cotangent[0], reset, update, new, hx, hn, input_bias is not None)


@composition(aten._thnn_fused_gru_cell_backward.default)
def fused_gru_cell_backward(
    cotangent: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, ...]:
    """In terms of the kernel's workspace: r, z, n, h and b."""
    reset, update, new, hx, hn = workspace.chunk(5, 1)
    return _gru_cotangents(cotangent, reset, update, new, hx, hn, has_bias)


def _gru_cotangents(
    cotangent: torch.Tensor,
    reset: torch.Tensor,
    update: torch.Tensor,
    new: torch.Tensor,
    hx: torch.Tensor,
    hn: torch.Tensor,
    has_bias: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Of h' = n + z (h - n) with r = sigmoid(...), z = sigmoid(...), n = tanh(a + r b).

    The cotangents of the input gates, the hidden gates, h and the two biases.
    """
    of_new = cotangent * (1 - update) * (1 - new * new)
    of_update = cotangent * (hx - new) * (1 - update) * update
    of_reset = of_new * hn * (1 - reset) * reset
    of_input = torch.cat([of_reset, of_update, of_new], 1)
    of_hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, cotangent * update, *biases
