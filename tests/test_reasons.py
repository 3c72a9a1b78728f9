from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.observing import Compilation, Event, watching
from adjoint.reasons import phrased


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (
            "0/0: tensor 'x' size mismatch at index 0. expected 5, actual 7",
            "argument x: size 7 in dimension 0, was 5",
        ),
        (
            "0/1: tensor 'L['x']' stride mismatch at index 1. expected 1, actual 8",
            "argument x: stride 8 in dimension 1, was 1",
        ),
        ("0/1: n == 3     # return x * n  # f.py:7 in f", "n is no longer 3"),
        ("3/1: len(L['xs']) == 2", "xs has another length than 2"),
        ("0/0: something_else(L['x'], G['y'])  # a line", "something_else(x, y)"),
        ("0/0: GLOBAL_STATE changed: grad_mode ", "a global mode of torch changed: grad_mode"),
    ],
)
def test_guards_in_words(guard: str, said: str) -> None:
    assert phrased(guard) == said


def test_a_size_that_becomes_a_symbol() -> None:
    guard = "0/0: tensor 'x' size mismatch at index 0. expected 5, actual 7"
    assert phrased(guard, becomes_symbol=True).endswith("was 5; marked dynamic now")


def test_what_dynamo_says_is_understood() -> None:
    def f(x: Tensor, n: int = 3) -> Tensor:
        return (x * n).sum()

    reasons: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Compilation):
            reasons.append(event.reason)

    compiled = torch.compile(f, backend="adjoint")
    with watching(note):
        compiled(torch.rand(5))
        compiled(torch.rand(7))
        compiled(torch.rand(9).double())
        compiled(torch.rand(9), n=4)
        compiled(torch.rand(9, requires_grad=True), n=4)
        compiled(torch.rand(3, 3, requires_grad=True), n=4)
        with torch.no_grad():
            compiled(torch.rand(9), n=4)
    assert reasons == [
        "",
        "argument x: size 7 in dimension 0, was 5; marked dynamic now",
        "argument x: dtype Double, was Float",
        "n is no longer 3",
        "argument x: requires_grad=True, was False",
        "argument x: 2 dimensions, was 1",
        "a global mode of torch changed: grad_mode",
    ]
