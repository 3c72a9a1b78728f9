from typing import Any

import torch

from adjoint.rules.recurrent import fused_gru_cell
from adjoint.rules.registry import COMPOSITIONS
from tests.rules.rows import real

aten = torch.ops.aten


def cell(x: Any, h: Any, hx: Any, bx: Any, bh: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and what the kernel keeps."""
    (xr, xz, xn), (hr, hz, hn) = (x + bx).chunk(3, 1), (h + bh).chunk(3, 1)
    reset, update = (xr + hr).sigmoid(), (xz + hz).sigmoid()
    new = (xn + reset * hn).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, hn], 1)


def test_both_forms_are_the_derivative_of_the_cell() -> None:
    shapes = [(2, 9), (2, 9), (2, 3), (9,), (9,)]
    inputs = [real(*shape, seed=i) for i, shape in enumerate(shapes)]
    out, workspace = cell(*inputs)
    g = real(2, 3, seed=9)
    wanted = torch.autograd.grad(out, inputs, g)
    torch.testing.assert_close(fused_gru_cell((g, None), (out, workspace), *inputs), wanted)
    backward = COMPOSITIONS[aten._thnn_fused_gru_cell_backward.default]
    torch.testing.assert_close(backward(g, workspace, True), wanted)
    assert backward(g, workspace, False)[3:] == (None, None)
