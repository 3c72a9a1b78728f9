from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.torch_private import modes, patches


class Passing(modes.TorchDispatchMode):
    """Sees all ops, and lets them be."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


def test_a_function_is_replaced_under_a_mode_and_put_back() -> None:
    first = lambda: 1  # noqa: E731
    owner = SimpleNamespace(name=first)
    mode, other = Passing(), Passing()  # type: ignore[no-untyped-call]

    def fails() -> None:
        with patches.replaced(owner, "name", lambda: 2, mode):
            assert owner.name() == 1
            with other:
                assert owner.name() == 1
                with mode:
                    raise KeyError(owner.name())

    with pytest.raises(KeyError, match="2"):
        fails()
    assert owner.name is first


def test_a_method_of_a_class_is_replaced_under_a_mode() -> None:
    class Owner:
        @classmethod
        def name(cls, number: int) -> Any:
            return cls, number

    class Heir(Owner):
        pass

    mode = Passing()  # type: ignore[no-untyped-call]
    with patches.replaced(Owner, "name", lambda cls, number: (cls, -number), mode):
        assert Heir.name(3) == (Heir, 3)
        with mode:
            assert Heir.name(3) == (Heir, -3)
    assert Heir.name(3) == (Heir, 3)


def test_control_flow_reaches_a_mode() -> None:
    seen = []

    class Watch(modes.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return args[1](*args[3]) if function is torch.ops.higher_order.cond else function(*args)

    x = torch.ones(3)
    mode = Passing()  # type: ignore[no-untyped-call]
    with patches.control_flow_calls_its_operator(mode), mode, Watch():
        assert torch.compiler.is_dynamo_compiling()
        result = torch.cond(torch.tensor(True), lambda t: t["x"] * 2, lambda t: t["x"], ({"x": x},))
    assert torch.ops.higher_order.cond in seen
    assert torch.equal(result, x * 2)
    assert not torch.compiler.is_dynamo_compiling()


def test_custom_functions_are_routed() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

    def apply(original: Any, function: type, *args: Any) -> Any:
        return function, original(*args)

    before = torch.autograd.Function.__dict__["apply"]
    mode, other = Passing(), Passing()  # type: ignore[no-untyped-call]
    with patches.custom_functions_applied_by(apply, mode):
        routed: Any = Double
        with other:
            assert isinstance(routed.apply(torch.ones(3)), Tensor)  # Nothing is captured here.
        with mode:
            function, result = routed.apply(torch.ones(3))
    assert function is Double
    assert torch.equal(result, torch.full((3,), 2.0))
    assert torch.autograd.Function.__dict__["apply"] is before


@pytest.mark.parametrize("said", [None, True, False])
def test_whether_a_function_wants_zeros(said: bool | None) -> None:
    contexts: list[Any] = []
    given: list[Any] = []

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            contexts.append(ctx)
            if said is not None:
                ctx.set_materialize_grads(said)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            given.extend(cotangents)
            return cotangents[0]

    mode = Passing()  # type: ignore[no-untyped-call]
    with (
        patches.custom_functions_applied_by(lambda original, cls, *args: original(*args), mode),
        mode,
    ):
        applied: Any = Both
        applied.apply(torch.ones(3, requires_grad=True))[0].sum().backward()
    assert patches.materializes_grads(contexts[0]) is (said is not False)
    assert (given[1] is None) is (said is False)
