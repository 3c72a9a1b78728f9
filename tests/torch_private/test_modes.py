from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from adjoint.torch_private import modes
from adjoint.torch_private.fake import new_fake_mode


def test_below_autograd_nothing_is_recorded() -> None:
    x = torch.ones(3, requires_grad=True)
    with modes.below_autograd():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_without_torch_function() -> None:
    seen = []

    class Watch(modes.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        with modes.without_torch_function():
            torch.sin(torch.Tensor())
        assert not seen
        torch.sin(torch.Tensor())
    assert seen


def test_hooks_in_force() -> None:
    assert modes.saved_tensor_hooks() is None

    def pack(tensor: Tensor) -> Tensor:
        return tensor

    with saved_tensors_hooks(pack, pack):
        assert modes.saved_tensor_hooks() == (pack, pack)


def test_nobody_watches_inside() -> None:
    class Refusing(modes.TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise AssertionError(op)

    def pack(tensor: Tensor) -> Tensor:
        raise AssertionError(tensor)

    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(pack, pack), torch.autograd.set_detect_anomaly(True):
        with Refusing():  # type: ignore[no-untyped-call]
            with modes.without_observers():
                assert not torch.is_anomaly_enabled()
                x.sin()
            with pytest.raises(AssertionError):
                x.detach()
        assert torch.is_anomaly_enabled()
        with pytest.raises(AssertionError):
            x.sin()


def test_where_tensors_are_made_and_who_sees_calls() -> None:
    assert modes.default_devices() == ()
    assert not modes.has_torch_function_mode()
    with torch.device("meta"), torch.device("cpu"):
        assert [each.type for each in modes.default_devices()] == ["meta", "cpu"]
        assert not modes.has_torch_function_mode()
        with modes.TorchFunctionMode():
            assert modes.has_torch_function_mode()
            assert len(modes.default_devices()) == 2


def test_versions_can_be_set() -> None:
    x = torch.ones(3)
    modes.set_version(x, 7)
    assert x._version == x[1:]._version == 7


def test_autocast_is_off_inside() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        with modes.without_autocast():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
    with modes.without_autocast():
        assert not torch.is_autocast_enabled("cpu")


class Passing(modes.TorchDispatchMode):
    """Sees all ops, and lets them be."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


def test_a_function_is_replaced_under_a_mode_and_put_back() -> None:
    first = lambda: 1  # noqa: E731
    owner = SimpleNamespace(name=first)
    mode, other = Passing(), Passing()  # type: ignore[no-untyped-call]

    def fails() -> None:
        with modes.replaced(owner, "name", lambda: 2, mode):
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
    with modes.replaced(Owner, "name", lambda cls, number: (cls, -number), mode):
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
    with modes.control_flow_calls_its_operator(mode), mode, Watch():
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
    with modes.custom_functions_applied_by(apply, mode):
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
        modes.custom_functions_applied_by(lambda original, cls, *args: original(*args), mode),
        mode,
    ):
        applied: Any = Both
        applied.apply(torch.ones(3, requires_grad=True))[0].sum().backward()
    assert modes.materializes_grads(contexts[0]) is (said is not False)
    assert (given[1] is None) is (said is False)


def test_real_tensors_while_others_are_faked() -> None:
    real = torch.arange(3)
    with new_fake_mode(), modes.without_dispatch_modes():
        assert torch.equal(real, real.clone())


def test_the_innermost_tensor_under_levels_of_torch_func() -> None:
    seen: list[Any] = []

    def look(x: Tensor) -> Tensor:
        seen.append(modes.innermost(x))
        return x.sum()

    xs = torch.ones(2, 3)
    torch.func.vmap(torch.func.grad(look))(xs)
    assert not modes.is_functorch_wrapper(seen[0])
    assert seen[0].shape == (2, 3)
    assert modes.innermost(xs) is xs
    assert modes.innermost(3) == 3


def test_dual_numbers_have_tangents() -> None:
    x = torch.ones(3)
    assert not modes.has_tangent([x])
    with forward_ad.dual_level():
        assert not modes.has_tangent([x, 2, None])
        assert modes.has_tangent([x, forward_ad.make_dual(x, x)])


def test_levels_that_are_left_are_said() -> None:
    def count(x: Tensor) -> Tensor:
        with modes.outside_functorch() as levels:
            assert len(levels) == 2
            assert not modes.functorch_is_active()
        return x.sum()

    torch.func.vmap(torch.func.grad(count))(torch.ones(2, 3))
    with modes.outside_functorch() as levels:
        assert not levels


class Asking(torch.autograd.Function):
    """Asks, when autograd comes to it, where that goes on."""

    following = modes.ReachedNodes()
    found: list[tuple[int, ...]]
    zeros: list[Tensor]

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(each * 2 for each in inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        nodes = [node for node, _ in ctx.next_functions]
        Asking.found.append(Asking.following.that_run(nodes, object()))
        Asking.zeros = [modes.zero_cotangent(ctx, 1), modes.zero_cotangent(*ctx.next_functions[0])]
        return cotangents


def wanted_of(take: Callable[[Tensor, list[Tensor]], Any], count: int = 3) -> tuple[int, ...]:
    """What autograd goes on to; the first input is no leaf."""
    leaves = [torch.ones(n + 1, 2, requires_grad=True) for n in range(count)]
    Asking.found = []
    (last, *_) = outputs = Asking.apply(leaves[0].exp(), *leaves[1:])  # type: ignore[no-untyped-call]
    take(sum((each.sum() for each in outputs), last.sum()), leaves)
    (found,) = Asking.found
    return found


def test_autograd_says_where_it_goes_on() -> None:
    grad = torch.autograd.grad
    assert wanted_of(lambda loss, leaves: loss.backward()) == (0, 1, 2)
    assert wanted_of(lambda loss, leaves: loss.backward(inputs=[leaves[1]])) == (1,)
    assert wanted_of(lambda loss, leaves: grad(loss, leaves)) == (0, 1, 2)
    assert wanted_of(lambda loss, leaves: grad(loss, leaves[2])) == (2,)
    assert wanted_of(lambda loss, leaves: grad(loss, leaves[0])) == (0,)
    one, other = Asking.zeros
    assert (one.shape, other.shape) == ((2, 2), (1, 2))


def test_what_was_reached_is_for_some_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"a": True, "b": True, "c": modes._RETURNED}
    asked: list[Any] = []

    def answered(node: Any) -> Any:
        asked.append(node)
        return answers[node]

    monkeypatch.setattr(modes, "_will_run", answered)
    following = modes.ReachedNodes()
    for _ in range(modes.MAX_RUNS_UNASKED):
        assert following.that_run("abc", "all") == (0, 1, 2)
    assert asked == ["a", "b", "c"]
    answers.update(a=False)
    assert following.that_run("abc", "all") == (1, 2)
    asked.clear()
    # A leaf that was returned is not asked about; what was not reached is, in every run.
    answers.update(a=True, b=False, c=False)
    assert following.that_run("abc", "all") == (0, 2)
    assert asked == ["a", "b"]
    assert following.that_run("abc", "another kind") == (0,)


def test_only_the_error_about_leaves_is_an_answer() -> None:
    with pytest.raises(RuntimeError, match="backward pass"):
        modes.ReachedNodes().that_run([torch.ones(1, requires_grad=True).exp().grad_fn], 0)
