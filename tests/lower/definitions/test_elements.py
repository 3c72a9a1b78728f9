from __future__ import annotations

import pytest
import torch

from adjoint.lower.definitions.elements import NoDefinition, decline_if
from tests.lowering import check


def test_declining() -> None:
    decline_if(False)
    with pytest.raises(NoDefinition):
        decline_if(True)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (2, 0, 3)])
def test_of_nothing(shape: tuple[int, ...]) -> None:
    x, y = torch.zeros(shape), torch.ones(3)
    check(lambda x, y: [x + 1, x.sum() + y, x.sum(-1), x.mean(-1), x.prod() * y], x, y)
    check(lambda x, y: [x.sum(0), x.mean() + y, (x > 0).all() & (y > 0), (x > 0).any(0)], x, y)
    check(lambda x, y: [torch.cat([x, x + 1]), torch.cat([x.flatten(), y]), y + 1], x, y)
