import pytest
import torch

from tests.rules.rows import Row, agrees, has_rule

ROWS = [
    Row("cumsum", lambda x: x.cumsum(1).sin(), [(3, 4)], complex=True),
    Row("cummax", lambda x: torch.cummax(x, 1)[0].sin(), [(3, 4)]),
    Row("cummin", lambda x: torch.cummin(x, 0)[0].sin(), [(3, 4)]),
    Row("number", lambda x: x.cumsum(0).sin(), [()]),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)
