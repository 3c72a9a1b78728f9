import torch

from adjoint.rules.derived import by_rule
from adjoint.rules.registry import COMPOSITIONS, VJPS
from tests.differentiation import bridged, check
from tests.rules.rows import is_right, real, targets

aten = torch.ops.aten


def test_an_op_without_a_rule_has_torchs_formula() -> None:
    captured = bridged(torch.trace, real(3, 3)).captured
    assert targets(captured) == {aten.trace.default}
    assert aten.trace.default not in VJPS.keys() | COMPOSITIONS.keys()
    is_right(lambda x: torch.trace(x).sin(), real(3, 3))


def test_the_formula_is_not_that_of_a_python_definition() -> None:
    """The latter is another one for labels that end early."""
    labels = torch.tensor([[1, 2, -1, 3, 0], [-1, 0, 0, 0, 0]])
    check(lambda x: torch.nn.functional.multilabel_margin_loss(x, labels), [real(2, 5)], 1)


def test_a_rule_of_ours_serves_inside_a_composition() -> None:
    x, source, index = real(3), real(4, seed=1), torch.tensor([0, 0, 2, 2])

    def product(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return by_rule(aten.scatter_reduce.two, x, 0, index, source, "prod", include_self=True)

    assert torch.autograd.gradcheck(product, [x, source])
