from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.derivative import Derivative
from adjoint.graph.descriptors import Saved, SavedInput, Tangent
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import input_descriptors, output_descriptors, outputs_of
from adjoint.options import Options
from adjoint.partition.recomputing import is_cheap, is_free
from adjoint.partition.split import narrowed
from adjoint.rules.costs import MAX_SHORT_DIMENSION
from tests.control_flow import cond, scan
from tests.parity import leaf, plain

aten = torch.ops.aten


def recorded(
    function: Callable[..., Any], *args: Any, wrt: tuple[int, ...] = (0,), dynamic: bool = False
) -> Derivative:
    module = adjoint.capture(function, *args, dynamic=dynamic).graph_module
    made = Compiler(Options()).derivative(module, wrt)
    assert made is not None
    return made


def saved_nodes(made: Derivative) -> list[fx.Node]:
    """The saved inputs and outputs, as nodes of the forward graph."""
    inputs = [n for n in made.graph_module.graph.nodes if n.op == "placeholder"]
    outputs = outputs_of(made.graph_module.graph)
    return [inputs[i] for i in made.saved_inputs] + [outputs[i] for i in made.saved_outputs]


def saved_targets(made: Derivative) -> list[Any]:
    return [node.target if node.op == "call_function" else "input" for node in saved_nodes(made)]


def targets(module: fx.GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes]


def test_an_input_is_saved_as_an_input() -> None:
    made = recorded(torch.sin, leaf(3))
    assert made.saved_inputs == (0,)
    assert made.saved_outputs == ()
    assert len(outputs_of(made.graph_module.graph)) == made.results == 1


def test_a_result_is_saved_as_the_result() -> None:
    made = recorded(torch.exp, leaf(3))
    assert made.saved_inputs == ()
    assert made.saved_outputs == (0,)
    assert len(outputs_of(made.graph_module.graph)) == 1


def test_an_intermediate_value_is_saved_as_an_extra_output() -> None:
    made = recorded(lambda x: x.exp().sin(), leaf(3))
    assert saved_targets(made) == [aten.exp.default]
    descriptors = output_descriptors(made.graph_module.graph)
    assert isinstance(descriptors[-1], Saved)
    entering = input_descriptors(made.first_backward.graph_module.graph)
    assert any(isinstance(each, SavedInput) for each in entering)
    assert isinstance(entering[-1], Tangent)


def test_nothing_is_saved_for_a_linear_function() -> None:
    made = recorded(lambda x: (x * 3).sum() - x.mean(), leaf(3))
    assert made.saved_inputs == made.saved_outputs == ()


def test_nothing_is_saved_twice() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = x.exp()
        return z * y, z.sin() * y, z

    made = recorded(function, leaf(3), leaf(3), wrt=(0, 1))
    nodes = saved_nodes(made)
    assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.view(-1),
        lambda x: x[1:],
        lambda x: x.unsqueeze(0),
        lambda x: x.expand(2, 3, 4),
        lambda x: x.t()[0].view(-1, 1),
    ],
)
def test_views_are_recomputed(view: Callable[[Tensor], Tensor]) -> None:
    made = recorded(lambda x: view(x.exp()).sin(), leaf(3, 4))
    assert saved_targets(made) == [aten.exp.default]
    made = recorded(lambda x: view(x).sin(), leaf(3, 4))
    assert saved_targets(made) == ["input"]


def test_an_item_of_a_tuple_is_saved_not_the_tuple() -> None:
    made = recorded(lambda x: [part.sin() for part in x.exp().split(1)], leaf(3))
    assert all(isinstance(node.meta["val"], Tensor) for node in saved_nodes(made))


def test_sizes_are_saved_as_numbers() -> None:
    made = recorded(lambda x: x.mean(0).exp(), leaf(3, 4), dynamic=True)
    for node in saved_nodes(made):
        value = node.meta["val"]
        assert not isinstance(value, Tensor) or value.dim() > 0
    sizes = [n for n in saved_nodes(made) if not isinstance(n.meta["val"], Tensor)]
    assert len(sizes) == len(set(sizes))


def test_constants_are_recomputed() -> None:
    made = recorded(lambda x: x * torch.arange(3.0, dtype=x.dtype), leaf(3))
    assert saved_targets(made) == []
    assert aten.arange.default in targets(
        made.first_backward.graph_module
    ) or aten.arange.start_step in (targets(made.first_backward.graph_module))


def test_a_random_mask_is_saved_and_not_drawn_again() -> None:
    made = recorded(lambda x: nn.functional.dropout(x, 0.5), leaf(64))
    random = [
        target
        for target in targets(made.first_backward.graph_module)
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    ]
    assert random == []
    x, cotangent = plain(64), plain(64)
    results = evaluate(made.graph_module, [x])
    saved = [results[i] for i in made.saved_outputs]
    (gradient,) = evaluate(made.first_backward.graph_module, [*saved, cotangent])
    torch.testing.assert_close(gradient == 0, results[0] == 0)


def test_every_random_number_is_drawn_once_whether_or_not_it_is_needed() -> None:
    def function(x: Tensor) -> Tensor:
        torch.rand(3)
        return x.sin()

    made = recorded(function, leaf(3))
    assert aten.rand.default in targets(made.graph_module)
    assert aten.rand.default not in targets(made.first_backward.graph_module)


def test_a_backward_graph_takes_only_the_saved_values_that_its_cotangents_need() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), x.sin()

    compiler = Compiler(Options())
    made = compiler.derivative(adjoint.capture(function, leaf(3)).graph_module, (0,))
    assert made is not None
    first = compiler.backward(made, [0], (0,))
    assert [made.saved[i].describe() for i in made.saved_for(first)] == [first.saved[0].describe()]
    assert isinstance(first.saved[0], SavedInput)
    assert first.saved[0].of.index == 0
    second = compiler.backward(made, [1], (0,))
    assert second.saved == made.saved[:1] == input_descriptors(made.graph_module.graph)
    assert aten.exp.default not in targets(first.graph_module)


def test_a_value_used_forwards_only_is_not_saved() -> None:
    made = recorded(lambda x, y: (x * 2 + y.exp(), y.sin()), leaf(3), plain(3))
    assert saved_nodes(made) == []


# Fewest bytes -------------------------------------------------------------------------------------


def saved_bytes(made: Derivative) -> int:
    inputs = len(made.saved_inputs)
    values = [node.meta["val"] for node in saved_nodes(made)[inputs:]]
    return sum(v.numel() * v.itemsize for v in values if isinstance(v, Tensor))


def test_cheap_operators_are_recomputed() -> None:
    """The arguments of both squares can be recomputed from the exponential alone."""
    made = recorded(lambda x: (x.exp() * 2).square() + (x.exp() + 1).square(), leaf(50))
    assert saved_targets(made) == [aten.exp.default]


def test_a_broadcast_value_is_saved_before_the_broadcast() -> None:
    """The backward graph needs a column that is broadcast to a matrix."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.exp().unsqueeze(1) + y).square()

    made = recorded(lambda x: function(x, torch.ones(40, dtype=x.dtype)), leaf(30))
    assert saved_targets(made) == [aten.exp.default]
    assert saved_bytes(made) == 30 * 8


def test_masks_are_saved_as_masks() -> None:
    made = recorded(lambda x: torch.where((x.exp() * 2 > 1), x * 3, x), leaf(50))
    assert saved_bytes(made) <= 50


def test_costly_operators_are_not_recomputed() -> None:
    for slow in (torch.tanh, torch.sigmoid, torch.exp):
        made = recorded(lambda x, slow=slow: slow(x @ x).square(), leaf(6, 6))
        again = targets(made.first_backward.graph_module)
        assert not {aten.tanh.default, aten.sigmoid.default, aten.exp.default} & set(again)
        assert aten.mm.default in again


@pytest.mark.parametrize("inner", [1, MAX_SHORT_DIMENSION, MAX_SHORT_DIMENSION + 1])
def test_a_product_with_a_short_inner_dimension_is_recomputed(inner: int) -> None:
    args = leaf(50, inner), leaf(inner, 60)
    made = recorded(lambda x, y: (x @ y).square(), *args, wrt=(0, 1))
    assert (aten.mm.default in saved_targets(made)) == (inner > MAX_SHORT_DIMENSION)


def test_gathers_are_recomputed() -> None:
    made = recorded(lambda x, i: x.exp()[i].square(), leaf(5, 4), torch.arange(40) % 5)
    assert aten.index.Tensor not in saved_targets(made)
    assert aten.exp.default in saved_targets(made)


def eager_saves(function: Callable[..., Any], *args: Tensor) -> set[int]:
    """The arguments that eager saves."""
    seen: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(*args)
    return {place for place, arg in enumerate(args) if arg.data_ptr() in seen}


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: (x * 2 + y).sin(),
        lambda x, y: (x + y).exp() * y,
        lambda x, y: (x + 1).square() * 3,
        lambda x, y: torch.relu(x) + torch.relu(y * 2),
        lambda x, y: (x - y).abs().sqrt(),
        lambda x, y: torch.maximum(x, y * 2),
        lambda x, y: (x @ (y + 1)).tanh(),
        lambda x, y: (x.t() * 2 + y[0]).cos() + (x * y).sum(),
        lambda x, y: x.softmax(1) * (y * y * y),
        lambda x, y: torch.where(x > y, x * 2, y * 3).exp(),
    ],
)
def test_no_input_is_saved_that_eager_does_not_save(function: Callable[..., Any]) -> None:
    x, y = leaf(4, 4), leaf(4, 4)
    made = recorded(function, x, y, wrt=(0, 1))
    assert set(made.saved_inputs) <= eager_saves(function, x, y)


def test_a_backward_graph_without_some_gradients() -> None:
    made = recorded(lambda x, y: (x @ y).tanh(), leaf(3, 4), leaf(4, 5), wrt=(0, 1))
    whole = made.first_backward.graph_module
    part = narrowed(made.first_backward, {1}).graph_module
    assert [node is not None for node in outputs_of(part.graph)] == [False, True]
    assert output_descriptors(part.graph) == output_descriptors(whole.graph)
    assert input_descriptors(part.graph) == input_descriptors(whole.graph)
    assert targets(part).count(aten.mm.default) == targets(whole).count(aten.mm.default) - 1


def test_a_size_is_read_off_an_available_value() -> None:
    """For a cotangent of what the loop gives each step, the zeros to begin with need a size."""

    def function(x: Tensor) -> Any:
        return scan(lambda c, a: (c * a, c.sin()), x[0] * 1, x)

    module = adjoint.capture(function, leaf(4, 3), dynamic=True).graph_module
    compiler = Compiler(Options())
    made = compiler.derivative(module, (0,))
    assert made is not None
    assert made.cotangents_of(compiler.backward(made, [1], (0,))) == (1,)


def test_a_branch_that_draws_is_not_dead_code() -> None:
    def function(x: Tensor) -> Tensor:
        def draw(a: Tensor) -> Tensor:
            return a * torch.rand(3, dtype=a.dtype)

        cond(x.sum() > 0, draw, draw, (x,))
        return x.sin()

    made = recorded(function, leaf(3))
    assert torch.ops.higher_order.cond in targets(made.graph_module)
    assert torch.ops.higher_order.cond not in targets(made.first_backward.graph_module)


def cross_entropy(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.cross_entropy(x @ weight, target)


def test_a_softmax_of_half_precision_inputs_is_recomputed() -> None:
    args = leaf(16, 8).float(), leaf(8, 32).float(), torch.arange(16)
    made = recorded(cross_entropy, *args, wrt=(0, 1))
    large = [n.meta["val"].dtype for n in saved_nodes(made) if n.meta["val"].numel() == 16 * 32]
    assert large == [torch.bfloat16]


@pytest.mark.parametrize("softmax", [torch.softmax, torch.log_softmax])
def test_a_softmax_in_the_dtype_of_its_input_is_saved(softmax: Callable[..., Tensor]) -> None:
    made = recorded(lambda x: softmax(x @ x, 1), leaf(8, 8))
    assert made.saved_outputs == (0,)
    made = recorded(lambda x: softmax(x, 1, dtype=torch.float64), leaf(8, 8).float())
    assert made.saved_inputs == (), "eager does not save it"


def test_a_cast_is_recomputed() -> None:
    made = recorded(lambda x: x.exp().double().square(), leaf(50).float())
    assert saved_targets(made) == [aten.exp.default]


# When it is computed again ------------------------------------------------------------------------


def most_alive(module: fx.GraphModule) -> int:
    """The peak of live bytes of intermediate values."""
    nodes = list(module.graph.nodes)
    order = {node: place for place, node in enumerate(nodes)}
    returned = set(outputs_of(module.graph))
    last: dict[fx.Node, int] = {}
    for node in nodes:
        if node.op != "placeholder" and not is_free(node) and node not in returned:
            readers = list(node.users)
            for reader in readers:
                readers += list(reader.users) if is_free(reader) else []
            last[node] = max((order[reader] for reader in readers), default=order[node])
    alive = [0] * len(nodes)
    for node, end in last.items():
        value = node.meta.get("val")
        for place in range(order[node], end + 1):
            alive[place] += value.numel() * value.itemsize if isinstance(value, Tensor) else 0
    return max(alive)


def blocks(count: int, residual: bool = True, half: bool = False) -> Callable[..., Any]:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            for _ in range(count):
                y = nn.functional.layer_norm(x, x.shape[-1:]) @ weight
                z = (y * 3).square() @ weight
                x = x + z if residual else z
        return x

    return function


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_live_bytes_do_not_grow_with_depth(residual: bool, half: bool) -> None:
    def backward(count: int) -> fx.GraphModule:
        x, weight = leaf(32, 8).float(), leaf(8, 8).float()
        made = recorded(blocks(count, residual, half), x, weight, wrt=(0, 1))
        return made.first_backward.graph_module

    assert most_alive(backward(8)) == most_alive(backward(4))


def test_a_recomputed_node_is_placed_before_its_first_reader() -> None:
    made = recorded(lambda x: ((x.exp() * 2).square() @ x).tanh(), leaf(6, 6))
    nodes = list(made.first_backward.graph_module.graph.nodes)
    again = next(n for n in nodes if n.target is aten.mul.Tensor and 2 in n.args)
    assert nodes.index(again) > nodes.index(next(n for n in nodes if n.target is aten.mm.default))


def test_a_chain_of_sums_is_saved_not_recomputed() -> None:
    """Saving half the bytes would suffice, but all recomputed sums would be live at once."""
    made = recorded(blocks(4, half=True), leaf(32, 8).float(), leaf(8, 8).float())
    sums = [n for n in saved_nodes(made) if n.target is aten.add.Tensor]
    assert len(sums) == 2
    nodes = made.first_backward.graph_module.graph.nodes
    again = [n for n in nodes if n.target is aten.add.Tensor and n.meta.get("order") != 1]
    assert len(again) == 1, "the last sum, from the one before"


def test_a_mask_for_several_layers_is_not_widened() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        mask = torch.rand(x.shape) > 0.5
        for _ in range(3):
            x = (x * mask.to(x.dtype)).square() @ weight
        return x

    made = recorded(function, leaf(32, 8), leaf(8, 8), wrt=(0, 1))
    assert aten._to_copy.default not in saved_targets(made)
    assert aten.gt.Scalar in saved_targets(made)


def test_gradients_of_a_deep_residual_model_match_eager() -> None:
    x, weight = leaf(6, 5), leaf(5, 5)
    function = blocks(3)
    compiled = adjoint.compile(function)
    gradients = []
    for each in (compiled, function):
        first = torch.autograd.grad(each(x, weight).sin().sum(), (x, weight), create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        gradients.append((*first, *torch.autograd.grad(total, (x, weight))))
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize(
    "activation",
    [nn.functional.gelu, nn.functional.mish, nn.functional.silu, nn.functional.softplus],
)
@pytest.mark.parametrize(
    ("device", "dtype", "again"),
    [("cuda", torch.bfloat16, True), ("cuda", torch.float32, False), ("cpu", torch.float16, False)],
)
def test_an_activation_in_half_precision_is_recomputed_on_a_gpu(
    activation: Callable[[Tensor], Tensor], device: str, dtype: torch.dtype, again: bool
) -> None:
    graph = adjoint.capture(activation, plain(4)).graph_module.graph
    (node,) = (n for n in graph.nodes if n.op == "call_function")
    with FakeTensorMode():
        node.meta["val"] = torch.empty(4, dtype=dtype, device=device)
    assert is_cheap(node) == again


def test_nothing_is_saved_that_follows_from_other_saved_values() -> None:
    """A backward graph that is differentiated again saves all of its inputs anyway."""
    places = torch.arange(50) % 4

    def function(x: Tensor, w: Tensor, z: Tensor) -> Tensor:
        return ((x @ w)[places] * z).exp().sum()

    first = recorded(function, leaf(4, 8), leaf(8, 8), leaf(50, 8), wrt=(0, 1, 2)).first_backward
    inputs = [n for n in first.graph_module.graph.nodes if n.op == "placeholder"]
    active = [i for i, n in enumerate(inputs) if n.meta["val"].is_floating_point()]
    again = Compiler(Options()).derivative(first.graph_module, active)
    assert again is not None
    assert set(again.saved_inputs) == set(range(len(inputs)))
    assert aten.index.Tensor not in [n.target for n in saved_nodes(again)]


@pytest.mark.parametrize("parts", [lambda x: x.unbind(1), lambda x: x.split([1, 2], 1)])
def test_parts_of_a_tensor_are_not_saved(parts: Callable[[Tensor], Any]) -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [part * 2 for part in parts(x * 3)]

    made = recorded(function, leaf(4, 3))
    assert saved_nodes(made) == []
    x = leaf(4, 3)
    results = function(x)
    compiled: Any = adjoint.compile(function)(x)
    for each in range(len(results)):
        torch.testing.assert_close(
            torch.autograd.grad(compiled[each].sum(), x, retain_graph=True),
            torch.autograd.grad(results[each].sum(), x, retain_graph=True),
        )
