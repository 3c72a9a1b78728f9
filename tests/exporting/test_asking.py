from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from adjoint.errors import ExportError
from adjoint.exporting.asking import asked_for


def function(a: torch.Tensor, b: Any, *more: torch.Tensor, scale: float = 1.0) -> None: ...


X = torch.rand(2, 3)


def test_leaves_have_the_names_of_arguments() -> None:
    asked = asked_for(function, (X, {"p": [X, 1]}, X), {"scale": 2.0}, False, None)
    assert asked.positional == ("a", "b", "args[2]")
    assert asked.paths == ["a", "b['p'][0]", "b['p'][1]", "args[2]", "scale"]


def test_a_module_has_the_names_of_its_forward() -> None:
    asked = asked_for(torch.nn.Linear(3, 2), (X,), {}, False, None)
    assert asked.positional == ("input",)
    asked = asked_for(partial(function, X), (X,), {}, False, None)
    assert asked.positional == ("b",)


def test_by_default_what_requires_grad_is_differentiated_by() -> None:
    y = X.clone().requires_grad_()
    index = torch.zeros(2, dtype=torch.int64)
    assert asked_for(function, (X, y), {}, False, None).wrt == [1]
    assert asked_for(function, (X, index, X), {}, False, None).wrt == [0, 2]
    assert asked_for(function, (X, (y, index)), {}, False, ["b[0]", "a"]).wrt == [0, 1]
    assert asked_for(function, (X, y), {}, False, ["weight"]).wrt_state == ["weight"]


def test_arguments_are_detached() -> None:
    y = (X.clone().requires_grad_() * 2)[0]
    asked = asked_for(function, (y, y), {}, False, None)
    assert asked.args[0].is_leaf
    assert asked.args[0] is asked.args[1]


def test_axes_have_bounds() -> None:
    asked = asked_for(function, (X, X.clone()), {}, {"a": {0: (1, 5), -1: True}, "b": [1]}, None)
    a, b = asked.args
    assert asked.axes(a) == [True, True]
    assert asked.axes(b) == [False, True]
    assert asked.bounds_of(a, 0) == (1, 5)
    assert asked.bounds_of(a, 1) == (0, None)


@pytest.mark.parametrize(
    ("dynamic", "why"),
    [
        ({"c": [0]}, "dynamic has 'c', which is no tensor among a, b"),
        ({"a": [2]}, "dynamic has axis 2 of a, which has 2 axes"),
        ({"a": {0: (3, 9)}}, "has the size 2 along axis 0, which is outside of its bounds"),
        (7, "dynamic=7; choose True, False, or axes of arguments by name"),
    ],
)
def test_sizes_that_are_not_there_are_refused(dynamic: Any, why: str) -> None:
    with pytest.raises(ExportError, match=why):
        asked_for(function, (X, X), {}, dynamic, None)


def test_what_is_no_plain_tensor_is_refused() -> None:
    class Own(torch.Tensor):
        pass

    with pytest.raises(ExportError, match="b is a Own, and a program is exported for plain"):
        asked_for(function, (X, X.as_subclass(Own)), {}, False, None)
    with pytest.raises(ExportError, match="wrt has 'b', which is no tensor"):
        asked_for(function, (X, 3.0), {}, False, ["b"])
