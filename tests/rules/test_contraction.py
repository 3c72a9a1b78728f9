import pytest
import torch

from tests.rules.rows import Row, agrees, has_rule

ROWS = [
    Row("mm", torch.mm, [(2, 3), (3, 4)], complex=True),
    Row("mm-transposed", lambda x, y: torch.mm(x.t(), y.t()), [(3, 2), (4, 3)], complex=True),
    Row("bmm", torch.bmm, [(2, 2, 3), (2, 3, 4)], complex=True),
    Row("addmm", torch.addmm, [(4,), (2, 3), (3, 4)], complex=True),
    Row(
        "addmm-scaled",
        lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3),
        [(2, 4), (2, 3), (3, 4)],
        complex=True,
    ),
    Row("baddbmm", torch.baddbmm, [(1, 4), (2, 2, 3), (2, 3, 4)], complex=True),
    Row("mv", torch.mv, [(2, 3), (3,)], complex=True),
    Row("addmv", lambda b, x, y: torch.addmv(b, x, y, alpha=2), [(2,), (2, 3), (3,)]),
    Row("dot", torch.dot, [(3,), (3,)], complex=True),
    Row("linear", torch.nn.functional.linear, [(2, 3), (4, 3), (4,)]),
    Row("empty", torch.mm, [(0, 3), (3, 4)]),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)
