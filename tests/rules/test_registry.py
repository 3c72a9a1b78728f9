import pytest
import torch

from adjoint.rules.registry import (
    COMPOSITIONS,
    VJPS,
    composition,
    composition_by_name,
    vjp,
    vjp_rule,
)
from tests.differentiation import bridged
from tests.rules.rows import real

aten = torch.ops.aten


def test_a_rule_is_used_in_place_of_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VJPS, aten.sin.default, VJPS[aten.sin.default])

    @vjp_rule(aten.sin.default)
    def rule(cotangent: torch.Tensor, out: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (cotangent * 7,)

    assert VJPS[aten.sin.default] is rule
    x = real(3)
    out = bridged(torch.sin, x)(x)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], torch.full_like(x, 7))


def test_a_cotangent_that_nobody_needs_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def part(name: str, cotangent: torch.Tensor) -> torch.Tensor:
        asked.append(name)
        return cotangent

    def rule(cotangent: torch.Tensor, out: object, x: object, y: object) -> object:
        return lambda: part("x", cotangent), lambda: part("y", cotangent)

    monkeypatch.setitem(VJPS, aten.mul.Tensor, rule)
    x, y = real(3), real(3).detach()
    torch.autograd.grad(bridged(torch.mul, x, y)(x, y).sum(), x)
    assert set(asked) == {"x"}


def test_registering_returns_what_was_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(*_: object) -> None: ...

    monkeypatch.delitem(VJPS, aten.cos.default)
    monkeypatch.delitem(COMPOSITIONS, aten.cos.default, raising=False)
    assert vjp(aten.cos.default)(made) is made
    assert composition(aten.cos.default)(made) is made
    assert VJPS.pop(aten.cos.default) is COMPOSITIONS.pop(aten.cos.default) is made


def test_an_op_has_one_rule_of_ours() -> None:
    with pytest.raises(AssertionError, match=r"aten.cos.default is registered twice"):
        vjp(aten.cos.default)(VJPS[aten.cos.default])


def test_arguments_of_a_composition_may_be_passed_by_name() -> None:
    seen: list[object] = []

    def made(first: object, **named: object) -> None:
        seen.append((first, named))

    try:
        assert composition_by_name(aten.addcmul.default)(made) is made
        COMPOSITIONS[aten.addcmul.default](1, 2, tensor2=3, value=4)
    finally:
        del COMPOSITIONS[aten.addcmul.default]
    assert seen == [(1, {"tensor1": 2, "tensor2": 3, "value": 4})]
