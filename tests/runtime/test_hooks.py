"""Hooks on tensors, on modules and on nodes of autograd's graph see what they see in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from tests.parity import leaf
from tests.scenarios import (
    Compiler,
    Scenario,
    Scenarios,
    by_backend,
    chain,
    check,
    compiled,
    fields,
    product,
    raised,
)

HOOKS = Scenarios()

grad = torch.autograd.grad


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Sigmoid()).double()


class Seen:
    """What hooks were given, in order."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def note(self, name: str) -> Callable[..., None]:
        """A hook that notes what it is given, and changes nothing."""

        def hook(*given: Any) -> None:
            values = [_copied(each) for each in given if not isinstance(each, nn.Module)]
            self.events.append((name, values))

        return hook


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, (tuple, list)):
        return [_copied(each) for each in value]
    return value


# Tensors ------------------------------------------------------------------------------------------


@HOOKS
def on_leaves(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    x.register_hook(seen.note("x"))
    x.register_hook(lambda gradient: gradient * 2)
    x.register_hook(seen.note("x again"))
    y.register_hook(lambda gradient: gradient.square())
    run = compiled(product)
    for _ in range(2):
        run(x, y).sum().backward()
    return seen.events, fields(x, y)


@HOOKS
def on_an_input_with_a_history(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    h = x.cos()
    h.retain_grad()
    h.register_hook(seen.note("h"))
    h.register_hook(lambda gradient: gradient + 1)
    compiled(product)(h, y).sum().backward()
    return seen.events, fields(x, y, h)


@HOOKS
def on_a_result(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    out = compiled(product)(x, y)
    out.register_hook(seen.note("before"))
    handle = out.register_hook(lambda gradient: gradient * 100)
    out.register_hook(lambda gradient: gradient * 3)
    out.register_hook(seen.note("after"))
    out.retain_grad()
    handle.remove()
    out.square().sum().backward()
    return seen.events, fields(x, y, out)


@HOOKS
def on_results_of_results(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    out = compiled(chain)(x, y)
    for place, each in enumerate(out):
        each.retain_grad()
        each.register_hook(seen.note(f"result {place}"))
        each.register_hook(lambda gradient: gradient * 2)
    out[2].backward()
    return seen.events, fields(x, y, *out)


@HOOKS
def at_order_two(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    x.register_hook(lambda gradient: gradient.sin())
    out = compiled(chain)(x, y)
    out[0].register_hook(lambda gradient: gradient.square())
    out[1].register_hook(seen.note("second"))
    first = grad(out[2], (x, y, out[0]), create_graph=True)
    second = grad([each.square().sum() for each in first], (x, y, *out[:2]))
    return seen.events, first, second


@HOOKS
def on_a_gradient(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    first = grad(compiled(product)(x, y).sum(), (x, y), create_graph=True)
    for place, each in enumerate(first):
        each.register_hook(seen.note(f"gradient {place}"))
        each.register_hook(lambda gradient: gradient * 2)
        each.retain_grad()
    (first[0] * first[1]).sum().backward()
    # They are results of one node: see `test_the_order_among_results_of_one_node`.
    return sorted(seen.events, key=lambda pair: str(pair[0])), fields(x, y, *first)


@HOOKS
def of_another_shape(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(product)(x, y)
    out.register_hook(lambda gradient: gradient.sum())
    return raised(lambda: out.sum().backward()), fields(x, y)


@HOOKS
def of_another_dtype(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(product)(x, y)
    out.register_hook(lambda gradient: gradient.float())
    return raised(lambda: out.sum().backward()), fields(x, y)


@HOOKS
def that_fail(compiled: Compiler) -> Any:
    def fail(gradient: Tensor) -> Tensor:
        raise KeyError("on purpose")

    x, y = leaf(3), leaf(3)
    run = compiled(product)
    found = []
    for other in (y, x.cos()):
        out = run(x, other)
        out.register_hook(fail)
        found.append(raised(out.sum().backward))
    return found, fields(x, y)


@HOOKS
def that_change_the_gradient_in_place(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    out = compiled(chain)(x, y)
    for each in out:
        each.register_hook(
            lambda gradient: gradient.mul_(2) and None if gradient.ndim == 0 else None
        )
    out[0].register_hook(seen.note("first"))
    out[2].backward()
    return seen.events, fields(x, y)


@HOOKS
def with_a_derivative_inside(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    run = compiled(product)
    out = run(x, y)

    def hook(gradient: Tensor) -> Tensor:
        with torch.enable_grad():
            (inside,) = grad(run(x, y).sum(), x)
        seen.events.append(inside)
        return gradient * inside

    out.register_hook(hook)
    out.sum().backward()
    return seen.events, fields(x, y)


@HOOKS
def that_are_removed_as_they_run(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    run = compiled(product)
    handles: list[Any] = []

    def once(gradient: Tensor) -> Tensor:
        handles.pop().remove()
        return gradient * 10

    handles.append(x.register_hook(once))
    for _ in range(2):
        run(x, y).sum().backward()
        seen.events.append(_copied(x.grad))
    return seen.events


@HOOKS
def on_a_view_of_a_result(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    out = compiled(lambda x, y: (h := x * y, h[1:]))(x, y)
    for place, each in enumerate(out):
        each.register_hook(seen.note(f"result {place}"))
        each.register_hook(lambda gradient: gradient * 2)
        each.retain_grad()
    (out[0].sum() + out[1].exp().sum()).backward()
    return seen.events, fields(x, y, *out)


@HOOKS
def before_and_after_a_write(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    out = compiled(lambda x, y: x * y)(x, y)
    out.register_hook(seen.note("before"))
    out.mul_(y)
    out.register_hook(seen.note("after"))
    out.sum().backward()
    return seen.events, fields(x, y)


@HOOKS
def on_a_result_without_a_history(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(lambda x, y: (x * y, (x * y).detach(), (x > y).sum()))(x, y)
    found = [raised(each.register_hook, print) == "RuntimeError" for each in out]
    found += [raised(each.retain_grad) for each in out]
    return found


# After accumulation -------------------------------------------------------------------------------


@HOOKS
def after_accumulation(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()

    def step(tensor: Tensor) -> None:
        assert tensor.grad is not None
        seen.events.append(("step", tensor.grad.clone()))
        with torch.no_grad():
            tensor.sub_(tensor.grad)
        tensor.grad = None

    for each in (x, y):
        each.register_post_accumulate_grad_hook(step)
    run = compiled(product)
    for _ in range(3):
        run(x, y).sum().backward()
    return seen.events, [x, y]


@HOOKS
def after_accumulation_of_parameters(compiled: Compiler) -> Any:
    module, seen = network(), Seen()
    for name, each in module.named_parameters():
        each.register_post_accumulate_grad_hook(
            lambda p, name=name: seen.events.append((name, p.grad.clone()))
        )
    compiled(module)(leaf(2, 3)).sum().backward()
    return sorted(seen.events, key=lambda pair: str(pair[0]))


@HOOKS
def after_accumulation_not_where_a_gradient_is_asked_for(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    x.register_post_accumulate_grad_hook(lambda each: seen.events.append("accumulated"))
    x.register_hook(seen.note("x"))
    out = compiled(product)(x, y)
    found = grad(out.sum(), x, retain_graph=True)
    torch.autograd.backward(out.sum(), inputs=[y])
    return seen.events, found, fields(x, y)


# Several tensors ----------------------------------------------------------------------------------


def multi(mode: Any) -> Scenario:
    def scenario(compiled: Compiler) -> Any:
        x, y, z, seen = leaf(3), leaf(3), leaf(3), Seen()
        out = compiled(chain)(x, y)
        register_multi_grad_hook([x, y, z], seen.note("leaves"), mode=mode)
        register_multi_grad_hook([out[2], out[0]], seen.note("results"), mode=mode)
        register_multi_grad_hook([out[0], x], seen.note("both"), mode=mode)
        out[2].backward(retain_graph=True)
        out[0].sum().backward()
        # Each runs when its last, or first, tensor has a gradient: leaves have theirs at once.
        return sorted(seen.events, key=lambda pair: str(pair[0])), fields(x, y, z)

    scenario.__name__ = f"of_{mode}_of_several_tensors"
    return scenario


HOOKS += [multi("all"), multi("any")]


# Nodes --------------------------------------------------------------------------------------------


@HOOKS
def on_nodes(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    out = compiled(lambda x, y: (x * y).sin())(x, y)
    node: Any = out.grad_fn
    node.register_prehook(seen.note("pre"))
    node.register_prehook(lambda given: tuple(each * 2 for each in given))
    out.register_hook(seen.note("tensor"))
    out.sum().backward()
    return seen.events, fields(x, y)


@HOOKS
def on_a_node_after_it_ran(compiled: Compiler) -> Any:
    x, seen = leaf(3), Seen()
    out = compiled(torch.sin)(x)
    node: Any = out.grad_fn
    node.register_hook(seen.note("after"))
    node.register_hook(lambda inputs, outputs: tuple(each * 3 for each in inputs))
    out.sum().backward()
    return seen.events, fields(x)


@HOOKS
def on_accumulation(compiled: Compiler) -> Any:
    x, y, seen = leaf(3), leaf(3), Seen()
    view: Any = x.view_as(x).grad_fn
    node = view.next_functions[0][0]
    node.register_prehook(seen.note("pre"))
    node.register_hook(seen.note("after"))
    compiled(product)(x, y).sum().backward()
    return seen.events, fields(x, y)


@HOOKS
def walked_from_a_result(compiled: Compiler) -> Any:
    x, y = leaf(3), leaf(3)
    out = compiled(chain)(x, y)
    reached, todo = set(), [each.grad_fn for each in out]
    while todo:
        node = todo.pop()
        if hasattr(node, "variable"):
            reached.add([each is node.variable for each in (x, y)].index(True))
        todo += [following for following, _ in node.next_functions if following is not None]
    return reached


# Modules ------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Hooks of the modules inside break the graph: what is around them is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = network()
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        h = (x * x.sin()).exp()
        h = self.inside(h)
        result: Tensor = (h * self.scale).cos() + h
        return result


def backward_hooks(module: nn.Module, seen: Seen, name: str, change: bool) -> None:
    module.register_full_backward_pre_hook(seen.note(f"{name} pre"))
    module.register_full_backward_hook(seen.note(f"{name} after"))
    if change:
        module.register_full_backward_pre_hook(lambda m, got: (got[0] * 2,))  # type: ignore[index]
        module.register_full_backward_hook(
            lambda m, given, got: tuple(None if g is None else g * 3 for g in given)  # type: ignore[attr-defined]
        )


@HOOKS
def of_a_module_that_is_compiled(compiled: Compiler) -> Any:
    module, seen, x = Residual(), Seen(), leaf(2, 3)
    backward_hooks(module, seen, "module", True)
    compiled(module, fullgraph=False)(x).sum().backward()
    return seen.events, fields(x, *module.parameters())


@HOOKS
def of_modules_inside(compiled: Compiler) -> Any:
    module, seen, x = Residual(), Seen(), leaf(2, 3)
    backward_hooks(module.inside[0], seen, "first", True)
    backward_hooks(module.inside[2], seen, "second", False)
    compiled(module, fullgraph=False)(x).sum().backward()
    return seen.events, fields(x, *module.parameters())


@HOOKS
def of_modules_inside_at_order_two(compiled: Compiler) -> Any:
    module, seen, x = Residual(), Seen(), leaf(2, 3)
    backward_hooks(module.inside[2], seen, "second", True)
    first = grad(compiled(module, fullgraph=False)(x).sum(), x, create_graph=True)
    return seen.events, first, grad(first[0].square().sum(), [x, *module.inside[0].parameters()])


@HOOKS
def of_modules_compiled_in_place(compiled: Compiler) -> Any:
    module, seen, x = network(), Seen(), leaf(2, 3)
    for each in (module[0], module[2]):
        each.forward = compiled(each.forward)
        backward_hooks(each, seen, "inside", True)
    module(x).sum().backward()
    return seen.events, fields(x, *module.parameters())


@HOOKS
def before_and_after_forward(compiled: Compiler) -> Any:
    module, seen, x = network(), Seen(), leaf(2, 3)
    module.register_forward_pre_hook(lambda m, given: (given[0] * 2,))
    module.register_forward_hook(lambda m, given, out: out + given[0].sum())
    module[0].register_forward_pre_hook(lambda m, given: (given[0].sin(),))
    module[2].register_forward_hook(lambda m, given, out: out.square())
    handle = module[1].register_forward_hook(lambda m, given, out: out * 100)
    handle.remove()
    out = compiled(module)(x)
    out.sum().backward()
    return out, seen.events, fields(x, *module.parameters())


@HOOKS
def that_keep_what_they_see(compiled: Compiler) -> Any:
    """Feature extraction: what a hook keeps is a result with a history."""
    module, x = network(), leaf(2, 3)
    kept: dict[str, Any] = {}
    module[0].register_forward_hook(lambda m, given, out: kept.__setitem__("first", out))
    module[2].register_forward_hook(lambda m, given, out: kept.__setitem__("second", out))
    out = compiled(module)(x)
    kept["first"].retain_grad()
    kept["second"].register_hook(lambda gradient: gradient * 2)
    out.sum().backward(retain_graph=True)
    between = grad(kept["second"].sum(), kept["first"])
    return out, kept, between, fields(*[x, kept["first"], *module.parameters()])


@HOOKS
def added_and_removed_between_calls(compiled: Compiler) -> Any:
    module, x, found = network(), leaf(2, 3), []
    run = compiled(module)
    # By default Dynamo does not look whether a module has got other hooks.
    with torch._dynamo.config.patch(skip_nnmodule_hook_guards=False):
        found.append(run(x))
        handle = module[0].register_forward_hook(lambda m, given, out: out * 3)
        found.append(run(x))
        handle.remove()
        found.append(run(x))
    return found, grad(torch.stack(found).prod(), x)


@HOOKS
def with_keywords_and_always_called(compiled: Compiler) -> Any:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, by: Tensor) -> Tensor:
            return x * by

    module, x, by = Scaled(), leaf(3), leaf(3)
    module.register_forward_pre_hook(
        lambda m, args, kwargs: (args, {"by": kwargs["by"].exp()}), with_kwargs=True
    )
    out = compiled(module)(x, by=by)
    out.sum().backward()
    return out, fields(x, by)


@pytest.mark.parametrize("scenario", HOOKS, ids=lambda each: each.__name__)
def test_hooks(scenario: Scenario) -> None:
    check(scenario)


# Where we differ ----------------------------------------------------------------------------------


def of_a_compiled_module(compiled: Compiler) -> Any:
    module, seen, x = network(), Seen(), leaf(2, 3)
    run = compiled(module, fullgraph=False)
    backward_hooks(run, seen, "compiled", True)
    run(x).sum().backward()
    return seen.events, fields(x, *module.parameters())


def test_a_compiled_module_has_the_hooks_that_dynamo_gives_it() -> None:
    """Dynamo's module around a module does not call its full backward hooks, whatever compiles."""
    check(of_a_compiled_module, baseline=by_backend("eager"))


def test_the_order_among_results_of_one_node() -> None:
    """Results that are not computed from one another are results of one node.

    Their hooks run one after another, in the order in which they were first given any; in eager the
    result that was computed last comes first.
    """

    def order(compiler: Compiler) -> Any:
        x, seen = leaf(3), Seen()
        out = compiler(lambda x: (x.sin(), x.cos(), x.exp()))(x)
        for place in (1, 2, 0):
            out[place].register_hook(seen.note(str(place)))
        (out[0] * out[1] * out[2]).sum().backward()
        return [name for name, _ in seen.events]

    assert order(lambda function: function) == ["2", "1", "0"]
    assert compiled(order) == ["1", "2", "0"]
