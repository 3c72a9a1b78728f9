from __future__ import annotations

import pytest
import torch

import adjoint
from adjoint.runtime.reference import run, run_flat


def test_flat_and_packed_calls_are_one_program() -> None:
    x, y = torch.ones(3), torch.full((3,), 2.0)
    captured = adjoint.capture(lambda pair, scale: {"sum": pair[0] + pair[1] * scale}, (x, y), 3.0)
    assert torch.equal(run_flat(captured, [x, y])[0], torch.full((3,), 7.0))
    assert torch.equal(run(captured, (x, y), 3.0)["sum"], torch.full((3,), 7.0))


@pytest.mark.parametrize("args", [((torch.ones(3),), 3.0), ([torch.ones(3), torch.ones(3)], 3.0)])
def test_other_containers_are_refused(args: tuple[object, ...]) -> None:
    captured = adjoint.capture(lambda pair, scale: pair[0] * scale, (torch.ones(3),) * 2, 3.0)
    with pytest.raises(TypeError, match="captured for arguments"):
        run(captured, *args)


def test_another_constant_is_refused() -> None:
    captured = adjoint.capture(lambda x, scale: x * scale, torch.ones(3), 3.0)
    with pytest.raises(TypeError, match=r"captured for args\[1\] = 3.0, called with 4.0"):
        run(captured, torch.ones(3), 4.0)
