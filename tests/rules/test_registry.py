import pytest
import torch

from adjoint.rules.registry import COMPOSITIONS, VJPS, composition, vjp, vjp_rule
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

    monkeypatch.setitem(VJPS, aten.cos.default, made)
    monkeypatch.setitem(COMPOSITIONS, aten.cos.default, made)
    assert vjp(aten.cos.default)(made) is made
    assert composition(aten.cos.default)(made) is made
    assert VJPS[aten.cos.default] is COMPOSITIONS[aten.cos.default] is made
