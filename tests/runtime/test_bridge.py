from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.derivative import Backward, Derivative
from adjoint.options import Options
from adjoint.runtime import grad_program
from adjoint.runtime.bridge import DifferentiableGraph
from adjoint.runtime.executable import Executable
from tests.differentiation import Bridged, bridged, check
from tests.parity import leaf, plain

grad = torch.autograd.grad


def nth(function: Callable[[Tensor], Tensor], x: Tensor, order: int) -> Tensor:
    """The derivative of the sum of the derivative of the sum ..."""
    value = function(x)
    for _ in range(order):
        (value,) = grad(value.sum(), x, create_graph=True)
    return value


def network(width: int = 3) -> Any:
    torch.manual_seed(0)
    layers = [nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)]
    return nn.Sequential(*layers).double()


# Orders -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**4,
        lambda x: x.sin() * x.exp(),
        lambda x: x * x * x * x * x,
        lambda x: torch.tanh(x @ torch.ones(3, 3, dtype=x.dtype)),
        lambda x: x.softmax(0).log(),
    ],
)
def test_order_four(function: Callable[[Tensor], Tensor]) -> None:
    x = leaf(3)
    compiled = bridged(function, x)
    for order in range(5):
        torch.testing.assert_close(nth(compiled, x, order), nth(function, x, order))


def test_a_tanh_network_to_order_four() -> None:
    module, x = network(), leaf(5, 3)
    compiled = bridged(module, x)
    for order in (1, 2, 3):
        torch.testing.assert_close(nth(compiled, x, order), nth(module, x, order))
    mine, theirs = nth(compiled, x, 4), nth(module, x, 4)
    torch.testing.assert_close(mine, theirs)
    parameters = list(module.parameters())
    torch.testing.assert_close(
        grad(mine.square().sum(), parameters, allow_unused=True),
        grad(theirs.square().sum(), parameters, allow_unused=True),
    )


def test_mixed_derivatives() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.sin() * y**3).sum() + (x * y).exp().mean()

    x, y = leaf(4), leaf(4)
    compiled = bridged(function, x, y)
    for first, second, third in [(x, y, x), (y, y, x), (x, x, y)]:
        results = []
        for run in (compiled, function):
            (one,) = grad(run(x, y), first, create_graph=True)
            (two,) = grad(one.cos().sum(), second, create_graph=True)
            results.append(grad(two.square().sum(), third)[0])
        torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_the_gradient_of_a_scalar_is_handed_on_as_it_is() -> None:
    # Not even a sum of one number: torch has none of this dtype.
    check(torch.Tensor.chalf, [leaf()], 2)


def test_the_derivative_of_a_derivative_is_no_part_of_a_program_that_does_not_ask_for_it() -> None:
    made: list[str] = []

    class Watched(Compiler):
        def derivative(self, *args: Any, **options: Any) -> Derivative | None:
            made.append("derivative")
            return super().derivative(*args, **options)

        def backward(self, *args: Any) -> Backward:
            made.append("backward")
            return super().backward(*args)

    x = leaf(3)
    captured = bridged(lambda x: (x.sin().sum(),), x).captured
    compiled = DifferentiableGraph(captured.graph_module, Watched(Options()))
    for _ in range(3):
        compiled([x])[0].backward()
    assert made == ["derivative", "backward"]
    with torch.no_grad():
        compiled([x])
    assert made == ["derivative", "backward"]


# Cotangents ---------------------------------------------------------------------------------------


def several(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sin() * y, x.cos(), y.exp()


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_cotangents_left_out(used: Sequence[int]) -> None:
    x, y = leaf(3), leaf(3)
    results = []
    for run in (several, bridged(several, x, y)):
        outs = run(x, y)
        first: Any = grad(
            [outs[i].square().sum() for i in used], [x, y], create_graph=True, allow_unused=True
        )
        total = torch.stack([g.sin().sum() for g in first if g is not None]).sum()
        results.append((first, grad(total, [x, y], allow_unused=True)))
    for mine, theirs in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(mine, theirs)


def backwards_of(compiled: Bridged) -> Any:
    (program,) = compiled.graph.grad_programs()
    return program._backwards


def test_a_backward_graph_is_made_for_the_pattern_and_once() -> None:
    x, y = leaf(3), leaf(3)
    compiled = bridged(several, x, y)
    for _ in range(2):
        grad(compiled(x, y)[1].sum(), x)
    made = backwards_of(compiled)
    (version,) = made.get((1,)).versions
    backward = version.value.whole.backward
    targets = [node.target for node in backward.graph_module.graph.nodes]
    assert torch.ops.aten.exp.default not in targets
    assert torch.ops.aten.cos.default not in targets
    assert len([pattern for pattern in made if pattern == (1,)]) == 1


def test_patterns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grad_program, "MAX_PATTERNS", 6)

    def function(x: Tensor) -> list[Tensor]:
        return [x * k for k in range(1, 6)]

    x = leaf(3)
    compiled = bridged(function, x)
    for mask in range(1, 32):
        chosen = [k for k in range(5) if mask >> k & 1]
        outs = compiled(x)
        (mine,) = grad([outs[k].sum() for k in chosen], x)
        torch.testing.assert_close(mine, torch.full_like(x, sum(k + 1 for k in chosen)))
    assert len(backwards_of(compiled)) == 6


@pytest.mark.parametrize(
    "cotangent",
    [
        lambda: plain(4, 3).t(),
        lambda: plain(1).expand(3, 4),
        lambda: plain(3, 1).expand(3, 4),
        lambda: plain(6, 8)[::2, 1::2],
        lambda: plain(12).view(4, 3).t(),
    ],
)
def test_cotangents_of_any_layout(cotangent: Callable[[], Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin().view(12).view(3, 4) * 2

    x, seed = leaf(3, 4), cotangent()
    compiled = bridged(function, x)
    results = []
    for run in (function, compiled):
        (first,) = grad(run(x), x, seed, create_graph=True)
        results.append((first, grad(first, x, seed)[0]))
    torch.testing.assert_close(*results)


def test_results_without_a_derivative() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        return x.sin(), x.argmax(), x.detach() * 2, 3

    x = leaf(3)
    compiled = bridged(function, x)
    value, place, cut, number = compiled(x)
    assert value.requires_grad
    assert not place.requires_grad
    assert not cut.requires_grad
    assert number == 3
    torch.testing.assert_close(grad(value.sum(), x)[0], x.detach().cos())


def test_integer_inputs() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x[index].square()

    x, index = leaf(5), torch.tensor([0, 3, 3])
    check(function, [x, index], 2)


def test_one_result_twice_and_an_input_returned() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.sin()
        return y, y, x

    x = leaf(3)
    results = []
    for run in (function, bridged(function, x)):
        one, two, same = run(x)
        assert same is x
        results.append(grad((one * 2 + two * 3 + same).sum(), x)[0])
    torch.testing.assert_close(*results)


def test_a_region_that_enables_grad_under_no_grad() -> None:
    def function(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x.sin()

    x = leaf(3)
    with torch.no_grad():
        compiled = bridged(function, x)
        out = compiled(x)
    assert out.requires_grad
    torch.testing.assert_close(grad(out.sum(), x)[0], x.detach().cos())


# `torch.func` and batches -------------------------------------------------------------------------


def jacobian_rows(out: Tensor, x: Tensor) -> Tensor:
    basis = torch.eye(out.numel(), dtype=out.dtype).view(-1, *out.shape)
    (rows,) = grad(out, x, basis, is_grads_batched=True, retain_graph=True, create_graph=True)
    return rows


def test_batched_cotangents() -> None:
    module, x = network(), leaf(2, 3)
    compiled = bridged(module, x)
    mine, theirs = jacobian_rows(compiled(x), x), jacobian_rows(module(x), x)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(grad(mine.sin().sum(), x), grad(theirs.sin().sum(), x))


def test_vmap_over_a_compiled_backward() -> None:
    x = leaf(3)
    compiled = bridged(lambda x: x.sin() * x, x)
    out = compiled(x)

    def row(cotangent: Tensor) -> Tensor:
        return grad(out, x, cotangent, retain_graph=True)[0]

    rows = torch.func.vmap(row)(torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(rows, torch.diag(grad(out.sum(), x)[0]))


def test_torch_func_around_a_compiled_function() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    x, xs = plain(3), plain(4, 3)
    compiled = bridged(function, x)
    with_grad = bridged(function, x.clone().requires_grad_())
    func = torch.func
    for run in (compiled, with_grad):
        torch.testing.assert_close(func.vmap(run)(xs), func.vmap(function)(xs))
        torch.testing.assert_close(func.grad(run)(x), func.grad(function)(x))
        torch.testing.assert_close(func.hessian(run)(x), func.hessian(function)(x))
        torch.testing.assert_close(
            func.vmap(func.grad(run))(xs), func.vmap(func.grad(function))(xs)
        )


def test_a_compiled_function_of_other_tensors_inside_torch_func() -> None:
    y = leaf(3)
    compiled = bridged(torch.sin, y)
    x = torch.ones(())
    (mine,) = (torch.func.grad(lambda x: (compiled(y) * x).sum())(x),)
    torch.testing.assert_close(mine, y.sin().sum().detach(), check_dtype=False)


# Memory -------------------------------------------------------------------------------------------


def test_saved_values_are_freed_after_backward() -> None:
    x = leaf(3)
    kept: list[weakref.ref[Any]] = []
    out: Any = bridged(lambda x: x.exp().sin(), x)(x)
    kept += [weakref.ref(t) for t in out.grad_fn.saved_tensors if t is not x]
    assert kept
    out.sum().backward()
    del out
    gc.collect()
    assert all(ref() is None for ref in kept)


def test_a_backward_graph_releases_saved_values_as_it_goes() -> None:
    alive: list[int] = []

    class Watched(Compiler):
        def program(
            self, graph_module: torch.fx.GraphModule, overwrites: bool = False
        ) -> Executable:
            run = super().program(graph_module, overwrites)

            def watching(inputs: list[Any]) -> Sequence[Any]:
                result = run(inputs)
                alive.append(len(inputs))
                return result

            return watching

    x = leaf(3)
    captured = bridged(lambda x: (x.exp().sin().sum(),), x).captured
    DifferentiableGraph(captured.graph_module, Watched(Options()))([x])[0].backward()
    assert alive == [0, 0]


def test_nothing_is_saved_twice() -> None:
    module, x = network(), leaf(5, 3)
    out: Any = bridged(module, x)(x)
    saved = out.grad_fn.saved_tensors
    memories = [tensor.untyped_storage().data_ptr() for tensor in saved]
    assert len(memories) == len(set(memories))


def test_a_compiled_function_that_is_gone_is_freed() -> None:
    x = leaf(3)
    compiled = bridged(torch.sin, x)
    compiled(x).sum().backward()
    module = weakref.ref(compiled.captured.graph_module)
    del compiled
    gc.collect()
    assert module() is None


@torch.library.custom_op("adjoint_tests::halves", mutates_args=())
def halves(x: Tensor) -> Tensor:
    return x / 2


@halves.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _reads_data(ctx: Any, cotangent: Tensor) -> Tensor:
    return cotangent * (0.5 if bool(cotangent.sum() > -1e9) else 1.0)


halves.register_autograd(_reads_data)


def test_a_derivative_that_reads_data_is_left_to_eager_and_says_so_once() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: halves(x) * x, backend="adjoint", fullgraph=True)
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    with pytest.warns(
        adjoint.FallbackWarning, match="eager autograd takes over: .*halves"
    ) as warned:
        result = compiled(x)
    assert {each.filename for each in warned} == {__file__}
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], x.detach())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, x.detach())


def test_gradients_that_eager_would_have_are_said_to_be_lost() -> None:
    """With respect to a written input: eager's ops run before the write has a history."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: halves(x.mul_(2)), backend="adjoint", fullgraph=True)
    leaf_of = torch.rand(3, dtype=torch.float64, requires_grad=True)
    x = leaf_of * 1
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = compiled(x)
        compiled(leaf_of * 1)
    told = [str(each.message) for each in seen if each.category is adjoint.FallbackWarning]
    assert sum("no gradient with respect to inputs" in each for each in told) == 1
    written, original = grad(result.sum(), [x, leaf_of], allow_unused=True)
    torch.testing.assert_close(original, torch.ones_like(original))
    assert written is None


@pytest.mark.parametrize(
    "norm",
    [torch.nn.LayerNorm(4), torch.nn.GroupNorm(2, 4), torch.nn.BatchNorm1d(4)],
    ids=lambda norm: type(norm).__name__,
)
def test_what_a_second_derivative_does_not_reach_has_none(norm: torch.nn.Module) -> None:
    """The bias of a normalization adds to its result, and to nothing that its backward needs."""
    layer = norm.double()
    x, parameters = leaf(3, 4), list(layer.parameters())

    def missing(run: Any) -> list[bool]:
        (first,) = grad(run(x).sum(), x, create_graph=True)
        return [each is None for each in grad(first.square().sum(), parameters, allow_unused=True)]

    torch._dynamo.reset()
    assert missing(torch.compile(layer, backend="adjoint")) == missing(layer) == [False, True]


@pytest.mark.filterwarnings("ignore:.*returns a leaf and what depends on it")
def test_a_new_leaf_and_what_depends_on_it() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.detach().clone().requires_grad_()
        return y, (y * y).sum()

    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    y, total = bridged(program, x)(x)
    torch.testing.assert_close(torch.autograd.grad(total, y), (2 * x.detach(),))


# What makes a tensor that requires grad, from one that is passed.
LEAVES: dict[str, Any] = {
    "new_zeros": lambda x: x.new_zeros(3, requires_grad=True),
    "new_ones": lambda x: x.new_ones(3, requires_grad=True),
    "new_full": lambda x: x.new_full((3,), 2.0, requires_grad=True),
    "tensor": lambda x: torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype, requires_grad=True),
}


@pytest.mark.filterwarnings("ignore:.*returns a leaf and what depends on it")
@pytest.mark.parametrize("make", LEAVES.values(), ids=LEAVES)
@pytest.mark.parametrize("known", [True, False])
def test_a_leaf_that_is_made_as_one(make: Any, known: bool) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        strain = make(x)
        return strain, (x * (1 + strain).square()).sum()

    torch._dynamo.reset()
    x = torch.randn(3, dtype=torch.float64, requires_grad=known)
    for run in (bridged(program, x), torch.compile(program, backend="adjoint")):
        strain, energy = run(x)
        assert strain.is_leaf
        stress = torch.autograd.grad(energy, strain)
        torch.testing.assert_close(stress, ((2 * x * (1 + strain)).detach(),))
