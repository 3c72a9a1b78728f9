"""Gradients between results of one compiled graph, and hooks on results, are eager's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

from adjoint.differentiate.segments import cut_into_segments, joined, segments_of
from tests.differentiation import bridged
from tests.parity import leaf

Results = tuple[Tensor, ...]


def one_after_another(x: Tensor, y: Tensor) -> Results:
    a = (x * y).sin()
    b = (a @ x).tanh()
    c = (b * a.sum() + y).exp()
    return c.sum(), a, b


def strained(x: Tensor, y: Tensor) -> Results:
    strain = torch.zeros(3, 3, dtype=x.dtype) + x.sum() * 0
    moved = x + x @ strain
    return (moved.square() * y).sum(), strain


def loss_and_logits(x: Tensor, y: Tensor) -> Results:
    logits = x @ y
    return torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])), logits


def side_by_side(x: Tensor, y: Tensor) -> Results:
    h = x.sin() * y
    one, other = h.cos(), h.exp()
    return one, other, (one * other).sum(), h


def with_an_input(x: Tensor, y: Tensor) -> Results:
    h = x * y
    return x, h, (h * x).sum()


def one_result_twice(x: Tensor, y: Tensor) -> Results:
    h = x * y
    return h, h, (h * h).sum()


def written_to(x: Tensor, y: Tensor) -> Results:
    h = x * y
    before = h + 1
    h.mul_(2)
    return before, h, (h * before).sum()


def detached_between(x: Tensor, y: Tensor) -> Results:
    h = x * y
    return h, (h.detach() * x).sum(), (h * x).sum()


def a_view_of_an_input(x: Tensor, y: Tensor) -> Results:
    v = x[1:]
    return v, (v.exp() * y[1:]).sum()


def a_view_of_what_is_not_returned(x: Tensor, y: Tensor) -> Results:
    v = (x * y)[1:]
    return v, v.exp().sum()


def views_of_views(x: Tensor, y: Tensor) -> Results:
    h = x * y
    v = h.view(1, -1)
    w = v.t()
    return w, (w.exp() * w).sum(), v, h


def several_views(x: Tensor, y: Tensor) -> Results:
    a, b, c = (x * y).unbind(0)
    return a, b, a * b * c


def there_and_back(x: Tensor, y: Tensor) -> Results:
    h = (x * y).unsqueeze(0)
    return h.squeeze(0), h, h.sin().sum()


def written_to_through_a_view(x: Tensor, y: Tensor) -> Results:
    h = x * y
    h[1:].mul_(2)
    return h, h.sin().sum()


def through_a_view_that_is_returned(x: Tensor, y: Tensor) -> Results:
    h = x.sin()
    v = h[1:]
    v.mul_(y[:-1])
    w = v.exp()
    return h, v, w, (w * v).sum()


def through_a_view_of_a_view(x: Tensor, y: Tensor) -> Results:
    h = x.sin()
    flat = h.view(-1)
    some = flat[::2]
    some.mul_(3)
    return h, flat, some, (some * 3).sum() + flat.prod() * y.sum()


def a_view_after_the_write(x: Tensor, y: Tensor) -> Results:
    h = x * y
    row = h[0]
    row.mul_(2)
    rest = row[1:]
    return h, row, rest, (row * 2).sum() * rest.sum()


def written_twice(x: Tensor, y: Tensor) -> Results:
    h = x.sin()
    row = h[0]
    row.mul_(2)
    between = row.exp()
    h.mul_(y)
    return h, row, between, (row * between).sum()


def drawn_after_the_write(x: Tensor, y: Tensor) -> Results:
    """What draws keeps its place among what draws."""
    h = x.sin()
    v = h[1:]
    v.mul_(2)
    noise = torch.rand(2, 3, dtype=x.dtype)
    return h, (v * noise).sum(), torch.rand(2, dtype=x.dtype) * y[0, 0]


def equal_values(x: Tensor, y: Tensor) -> Results:
    """Each result is a tensor of its own, though equal to another value."""
    h = x.exp()
    one, other = x * y, x * y
    return h.clone(), one, other, (x * y).sin() * h


PROGRAMS = [
    equal_values,
    through_a_view_that_is_returned,
    through_a_view_of_a_view,
    a_view_after_the_write,
    written_twice,
    drawn_after_the_write,
    a_view_of_an_input,
    a_view_of_what_is_not_returned,
    views_of_views,
    several_views,
    there_and_back,
    written_to_through_a_view,
    one_after_another,
    strained,
    loss_and_logits,
    side_by_side,
    with_an_input,
    one_result_twice,
    written_to,
    detached_between,
]


def both(
    program: Callable[..., Results], use: Callable[[Results, Tensor, Tensor], Any]
) -> tuple[Any, Any]:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        x, y = leaf(3, 3), leaf(3, 3)
        run = bridged(program, x, y) if compiled else program
        found.append(use(tuple(run(x, y)), x, y))
    return found[0], found[1]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_result_with_respect_to_each(program: Callable[..., Results]) -> None:
    def use(results: Results, x: Tensor, y: Tensor) -> list[Any]:
        found: list[Any] = []
        for head in results:
            for other in (*results, x, y):
                given: tuple[Tensor | None, ...] = torch.autograd.grad(
                    (head * head).sum(), other, create_graph=True, allow_unused=True
                )
                found += given
                if given[0] is not None and given[0].requires_grad:
                    again = (*results, x, y)
                    found += torch.autograd.grad(
                        given[0].sin().sum(), again, retain_graph=True, allow_unused=True
                    )
        return found

    eager, compiled = both(program, use)
    assert [each is None for each in compiled] == [each is None for each in eager]
    torch.testing.assert_close(compiled, eager)


@pytest.mark.parametrize("program", PROGRAMS)
def test_hooks_and_retained_gradients(program: Callable[..., Results]) -> None:
    def use(results: Results, x: Tensor, y: Tensor) -> list[Any]:
        seen: dict[int, list[Any]] = {}
        for place, each in enumerate(results):
            if each.is_leaf:
                continue
            each.retain_grad()
            if place == 1:
                # What it returns flows on.
                each.register_hook(lambda gradient: gradient * 3)
            each.register_hook(seen.setdefault(place, []).append)
        torch.stack([each.sum() for each in results]).prod().backward()
        return [seen, *(each.grad for each in (*results, x, y))]

    eager, compiled = both(program, use)
    torch.testing.assert_close(compiled, eager)


def test_a_hook_that_is_removed_and_one_on_a_node() -> None:
    def use(results: Results, x: Tensor, y: Tensor) -> list[Any]:
        head, middle = results
        middle.register_hook(lambda gradient: gradient * 100).remove()
        assert middle.grad_fn is not None
        middle.grad_fn.register_prehook(
            lambda given: tuple(g if g is None else g * 2 for g in given)
        )
        return list(torch.autograd.grad(head, (x, y)))

    def program(x: Tensor, y: Tensor) -> Results:
        a = (x * y).sin()
        return a.exp().sum(), a

    eager, compiled = both(program, use)
    torch.testing.assert_close(compiled, eager)


def test_written_to_outside() -> None:
    def use(results: Results, x: Tensor, y: Tensor) -> list[Any]:
        total, middle, last = results
        middle.register_hook(lambda gradient: gradient * 2)
        last.mul_(2)
        return list(torch.autograd.grad(last.sum() + total, (x, y, last), allow_unused=True))

    def program(x: Tensor, y: Tensor) -> Results:
        a = x * y
        b = a + y
        return b.sum(), a, b

    eager, compiled = both(program, use)
    torch.testing.assert_close(compiled, eager)


def computed_from_what_was_written(x: Tensor, y: Tensor) -> Results:
    x.mul_(y)
    return ((x * x).sum(),)


def written_and_returned(x: Tensor, y: Tensor) -> Results:
    x.sin_().mul_(y)
    return x, x * y


def written_after_a_result(x: Tensor, y: Tensor) -> Results:
    before = x.exp()
    x[0].add_(y[1])
    return before, x.cos().sum() * before.sum()


def a_view_of_what_was_written(x: Tensor, y: Tensor) -> Results:
    x.mul_(y)
    turned = x.t()
    return turned, turned.sin().sum(), x * 2


def both_are_written(x: Tensor, y: Tensor) -> Results:
    x.add_(y)
    y.copy_(x.exp())
    return (x * y).sum(), y.sin()


def a_view_of_what_was_written_without_history(x: Tensor, y: Tensor) -> Results:
    with torch.no_grad():
        x.mul_(y)
    turned = x.t()
    return turned, turned.sin().sum(), x * 2


WRITING = [
    a_view_of_what_was_written_without_history,
    computed_from_what_was_written,
    written_and_returned,
    written_after_a_result,
    a_view_of_what_was_written,
    both_are_written,
]
TARGETS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": lambda x: x * 1,
    "transposed": lambda x: (x * 1).t(),
    "every second": lambda x: torch.cat([x, x], 1)[:, ::2],
}


def two_orders_of(head: Tensor, others: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of a scalar of `head` with respect to all others, and those of these."""
    slopes: tuple[Tensor | None, ...] = torch.autograd.grad(
        (head * head).sum(), others, create_graph=True, allow_unused=True
    )
    curved = [each.sin().sum() for each in slopes if each is not None]
    total = torch.stack(curved).sum()
    return [*slopes, *torch.autograd.grad(total, others, retain_graph=True, allow_unused=True)]


@pytest.mark.parametrize("program", WRITING)
@pytest.mark.parametrize("target", TARGETS)
def test_results_with_respect_to_inputs_that_are_written(
    target: str, program: Callable[..., Results]
) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        roots = [leaf(3, 3), leaf(3, 3)]
        x, y = (TARGETS[target](each) for each in roots)
        run = bridged(program, x, y) if compiled else program
        versions = (x._version, y._version)
        results = run(x, y)
        seen = [*results, x, y, x._version - versions[0], y._version - versions[1]]
        hooked: list[Tensor] = []
        x.register_hook(hooked.append)
        others = (*results, x, y, *roots)
        for head in (*results, x):
            seen += two_orders_of(head, others)
        found.append([*seen, hooked])
    assert [each is None for each in found[1]] == [each is None for each in found[0]]
    torch.testing.assert_close(found[1], found[0])


def through_the_base(base: Tensor, view: Tensor, other: Tensor) -> Results:
    base.mul_(2)
    return view * view, base.sin(), view.sum() * base * other.sum()


def through_a_view(base: Tensor, view: Tensor, other: Tensor) -> Results:
    view.mul_(2)
    return base * base, view.sin(), other.exp()


def through_two_views(base: Tensor, view: Tensor, other: Tensor) -> Results:
    view.mul_(2)
    other.mul_(base.sum())
    return (view * 2).sum() * other, base.cos()


def without_the_base(base: Tensor, view: Tensor, other: Tensor) -> Results:
    view.mul_(3)
    return view * view, other.sin()


def a_view_of_the_view(base: Tensor, view: Tensor, other: Tensor) -> Results:
    base.mul_(2)
    part = view[1:]
    return part, part.exp() * other[0, 0], other


def through_the_base_without_history(base: Tensor, view: Tensor, other: Tensor) -> Results:
    with torch.no_grad():
        base.mul_(2)
    part = view[1:]
    return view * view, part, part.exp() * other.sum()


def through_a_view_without_history(base: Tensor, view: Tensor, other: Tensor) -> Results:
    view.detach().mul_(2)
    return view * view, base.cos(), other.exp()


@pytest.mark.parametrize(
    "program",
    [
        through_the_base,
        through_a_view,
        through_two_views,
        without_the_base,
        a_view_of_the_view,
        through_the_base_without_history,
        through_a_view_without_history,
    ],
)
def test_inputs_that_are_views_of_what_is_written(program: Callable[..., Results]) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        root = leaf(3, 3)
        base = root * 1
        inputs = (base, base[1:], base[:2].t())
        if program is without_the_base:
            inputs = (root.detach(), *inputs[1:])
        run = bridged(program, *inputs) if compiled else program
        results = run(*inputs)
        others = [each for each in (*results, *inputs, base, root) if each.requires_grad]
        seen = [*results, *inputs]
        for head in (*results, base):
            slopes: tuple[Tensor | None, ...] = torch.autograd.grad(
                (head * head).sum(), others, create_graph=True, allow_unused=True
            )
            seen += slopes
            curved = [each.sin().sum() for each in slopes if each is not None]
            again = torch.autograd.grad(
                torch.stack(curved).sum(), others, retain_graph=True, allow_unused=True
            )
            seen += again
        found.append(seen)
    assert [each is None for each in found[1]] == [each is None for each in found[0]]
    torch.testing.assert_close(found[1], found[0])


def transposed(base: Tensor, view: Tensor) -> Results:
    before = base + 1
    base.t_().unsqueeze_(0)
    return before, base * base, base.sum() * base.exp()


def a_view_is_moved(base: Tensor, view: Tensor) -> Results:
    part = view[1:]
    view.transpose_(0, 1)
    return part, view.exp(), view * base.sum()


def both_are_moved(base: Tensor, view: Tensor) -> Results:
    view.as_strided_((2, 2), (1, 2), 3)
    base.swapaxes_(0, 1)
    return view * view, base @ base


@pytest.mark.parametrize("program", [transposed, a_view_is_moved, both_are_moved])
def test_inputs_that_are_moved_in_place(program: Callable[..., Results]) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        root = leaf(3, 3)
        base = root * 1
        inputs = (base, base[1:])
        run = bridged(program, *inputs) if compiled else program
        results = run(*inputs)
        versions = [each._version for each in inputs]
        others = (*results, *inputs, root)
        seen: list[Any] = [*results, *inputs, versions]
        for head in (*results, *inputs):
            seen += two_orders_of(head, others)
        found.append(seen)
    assert [each is None for each in found[1]] == [each is None for each in found[0]]
    torch.testing.assert_close(found[1], found[0])


def counts(counter: Tensor, view: Tensor) -> None:
    counter.add_(1)


def counts_through_a_view(counter: Tensor, view: Tensor) -> None:
    view.mul_(2)


def shows_other_memory(counter: Tensor, view: Tensor) -> None:
    counter.data = counter * 2


def transposes(counter: Tensor, view: Tensor) -> None:
    counter.t_()


@pytest.mark.parametrize(
    "program", [a_view_of_an_input, views_of_views, a_view_of_what_was_written]
)
@pytest.mark.parametrize("effect", [counts, counts_through_a_view, shows_other_memory, transposes])
def test_effects_on_other_memory(
    program: Callable[..., Results], effect: Callable[[Tensor, Tensor], None]
) -> None:
    """As of a module that counts its calls, or that has running statistics."""

    def run(x: Tensor, y: Tensor, counter: Tensor, view: Tensor) -> Results:
        effect(counter, view)
        return program(x, y)

    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        counter = torch.randn(3, 3)
        inputs = (leaf(3, 3) * 1, leaf(3, 3), counter, counter[:2].detach())
        results = tuple((bridged(run, *inputs) if compiled else run)(*inputs))
        others = (*results, *inputs[:2])
        seen: list[Any] = [*results, *inputs]
        for head in results:
            seen += torch.autograd.grad(
                (head * head).sum(), others, retain_graph=True, allow_unused=True
            )
        found.append(seen)
    assert [each is None for each in found[1]] == [each is None for each in found[0]]
    torch.testing.assert_close(found[1], found[0])


def test_what_runs_is_one_program() -> None:
    x, y = leaf(3, 3), leaf(3, 3)
    compiled = bridged(one_after_another, x, y)
    compiled(x, y)
    (recording,) = compiled.graph.grad_programs()
    assert len(recording.segments) == 3
    inputs = recording.derivative.runs.graph.find_nodes(op="placeholder")
    assert len(inputs) == 2


def test_results_that_stand_alone_are_not_cut() -> None:
    def program(x: Tensor, y: Tensor) -> Results:
        return x.sin(), (x * y).sum(), y.detach() * 2

    x, y = leaf(3, 3), leaf(3, 3)
    captured = bridged(program, x, y).captured.graph_module
    assert cut_into_segments(captured, (0, 1)) == (captured, ())


def test_the_stress_of_a_compiled_module() -> None:
    torch._dynamo.reset()

    def use(results: Results, x: Tensor, y: Tensor) -> Any:
        return torch.autograd.grad(results[0], (results[1], x))

    torch.manual_seed(0)
    x, y = leaf(3, 3), leaf(3, 3)
    expected = use(strained(x, y), x, y)
    compiled = torch.compile(strained, backend="adjoint", fullgraph=True)
    torch.testing.assert_close(use(compiled(x, y), x, y), expected)


def test_a_cut_graph_in_one_piece_again() -> None:
    x, y = leaf(3, 3), leaf(3, 3)
    captured = bridged(one_after_another, x, y).captured.graph_module
    cut, cuts = cut_into_segments(captured, (0, 1))
    # The sum of the second result is no result, but is used one segment later.
    assert cuts == (1, 2, 3)
    segments = segments_of(cut, (0, 1, 2, 3, 4), cuts)
    assert segments.of_output == (2, 0, 1, 1)
    assert segments.inputs == (frozenset({0, 1}), frozenset({0, 2}), frozenset({1, 3, 4}))
    whole = joined(cut, cuts)
    assert [str(n.target) for n in whole.graph.nodes] == [
        str(n.target) for n in captured.graph.nodes
    ]


def residual(layers: int, shows_keys: bool, x: Tensor, y: Tensor) -> Results:
    """A network that returns a value of each layer, as a transformer returns keys and values."""
    h, keys = x, []
    for _ in range(layers):
        keys.append(h @ y)
        h = h + keys[-1].tanh() * h.sin()
    return (h.sum(), *keys) if shows_keys else (h.sum(),)


def test_the_stages_of_a_deep_network_are_no_more_work_than_one() -> None:
    """No segment goes again through what another goes through."""

    def reverse_nodes(layers: int, shows_keys: bool) -> int:
        x, y = leaf(3, 3), leaf(3, 3)
        program = bridged(partial(residual, layers, shows_keys), x, y)
        torch.autograd.grad(program(x, y)[0], (x, y))
        (grad_program,) = program.graph.grad_programs()
        segments = grad_program.segments or [grad_program]
        graphs = [
            version.value.whole.backward.graph_module.graph
            for segment in segments
            for table in segment._backwards.values()
            for version in table.versions
        ]
        return sum(node.op == "call_function" for graph in graphs for node in graph.nodes)

    assert reverse_nodes(12, True) <= 1.5 * reverse_nodes(12, False)
