from __future__ import annotations

import torch

from adjoint.dtypes import HALVES


def test_half_types_are_floating_point_numbers_of_16_bits() -> None:
    dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    halves = {each for each in dtypes if each.is_floating_point and each.itemsize == 2}
    assert halves == {*HALVES}
