from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.backend import compile_graph
from adjoint.compiler import Compiler
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import Backward, Derivative, Joint
from adjoint.graph.origins import for_part_of, origins_of, replace
from adjoint.graph.verify import GraphError
from adjoint.loops.plan import Plan
from adjoint.observing import Sighting
from adjoint.options import Options
from adjoint.passes import graph_pass
from adjoint.pipeline import JOINT, POST, primal
from tests.parity import leaf

aten = torch.ops.aten


def program(x: Tensor) -> Tensor:
    return x.sin() * 2


def graph() -> fx.GraphModule:
    class Root(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (program(x),)

    return fx.symbolic_trace(Root())


def stages(seen: list[Sighting]) -> list[tuple[str, int]]:
    return [(each.stage, each.order) for each in seen]


LOWERED = ["join-writes", "decompose", "merge-equal-values", "fetch-ahead", "lower"]
RUN = [*(each.name for each in POST), *LOWERED, "emit", "load"]
DIFFERENTIATED = ["differentiate", *(each.name for each in JOINT)]


def test_the_observer_is_shown_each_stage_of_each_order() -> None:
    seen: list[Sighting] = []
    x = leaf(3)
    options = Options(target="native")
    (result,) = compile_graph(graph(), [x], options, seen.append)(x)
    torch.testing.assert_close(result, program(x))
    forward = [("close-softmax", 0), ("partition", 1)]
    assert stages(seen) == [
        ("capture", 0),
        *((each.name, 0) for each in primal(())),
        *((name, 1) for name in DIFFERENTIATED),
        *forward,
        *((name, 0) for name in RUN),
    ]
    seen.clear()
    (first,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    assert stages(seen) == [
        *((name, 2) for name in DIFFERENTIATED),
        ("close-softmax", 1),
        ("partition", 2),
        *((name, 1) for name in RUN),
    ]
    seen.clear()
    torch.autograd.grad(first.square().sum(), x)
    # The second backward graph came with the partition.
    assert stages(seen) == [(name, 2) for name in RUN]


def test_the_observer_is_shown_each_stage_of_a_transform() -> None:
    """The function inside is differentiated while the transform is captured."""
    seen: list[Sighting] = []
    x = torch.rand(3)
    transform: Any = adjoint.grad(lambda x: program(x).sum())
    gradient = transform.observed(seen.append, {"target": "native"})(x)
    torch.testing.assert_close(gradient, x.cos() * 2)
    before = [(each.name, 0) for each in primal(())]
    assert stages(seen) == [
        *before,
        *((name, 1) for name in DIFFERENTIATED),
        ("close-softmax", 0),
        ("partition", 1),
        ("capture", 0),
        *before,
        *((name, 0) for name in RUN),
    ]


def test_what_is_shown_is_what_was_made_and_how_long_it_took() -> None:
    seen: list[Sighting] = []
    x = leaf(3)
    (result,) = compile_graph(graph(), [x], Options(target="native"), seen.append)(x)
    result.sum().backward()
    kinds = {
        "capture": CapturedProgram,
        "differentiate": Joint,
        "partition": (Derivative, Backward),
        "lower": Plan,
        "merge-common-subexpressions": fx.GraphModule,
    }
    for each in seen:
        assert isinstance(each.value, kinds.get(each.stage, object))  # type: ignore[arg-type]
        assert each.seconds >= 0


@graph_pass("sine-of-sum", "joint", after="open-softmax")
def shifted_cosine(graph_module: fx.GraphModule) -> fx.GraphModule:
    """sin(x) = cos(x - pi / 2), one node by two."""
    for node in graph_module.graph.find_nodes(op="call_function", target=aten.sin.default):
        x = node.args[0]
        with graph_module.graph.inserting_before(node):
            shifted = graph_module.graph.call_function(aten.sub.Tensor, (x, torch.pi / 2))
            shifted.meta = for_part_of(node, node.meta["val"])
            cosine = graph_module.graph.call_function(aten.cos.default, (shifted,))
            cosine.meta = for_part_of(node, node.meta["val"])
        replace(node, cosine)
    return graph_module


@pytest.mark.parametrize("target", ["native", "loops", "reference"])
def test_a_pass_of_ones_own_runs_where_it_asked_to(target: str) -> None:
    seen: list[Sighting] = []
    x = leaf(3)
    options = Options.parse({"target": target, "passes": [shifted_cosine], "verify": True})
    compiled = compile_graph(graph(), [x], options, seen.append)
    orders = []
    for run in (lambda x: compiled(x)[0], program):
        out = run(x)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.exp().sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.square().sum(), x)
        orders.append([out, first, second, third])
    torch.testing.assert_close(*orders)
    names = [each.stage for each in seen if each.order == 1]
    place = names.index("sine-of-sum")
    assert names[place - 1 : place + 1] == ["open-softmax", "sine-of-sum"]
    (made,) = (e.value for e in seen if e.stage == "sine-of-sum" and e.order == 1)
    assert isinstance(made, fx.GraphModule)
    assert not made.graph.find_nodes(op="call_function", target=aten.sin.default)
    # What stands for the sine is known as the sine that the user wrote.
    (captured,) = (e.value for e in seen if e.stage == "capture")
    assert isinstance(captured, CapturedProgram)
    (sine,) = captured.graph_module.graph.find_nodes(op="call_function", target=aten.sin.default)
    cosines = made.graph.find_nodes(op="call_function", target=aten.cos.default)
    assert any(set(origins_of(sine)) <= set(origins_of(node)) for node in cosines)


def test_a_pass_that_breaks_the_graph_is_named() -> None:
    @graph_pass("write-in-place", "post")
    def break_it(graph_module: fx.GraphModule) -> fx.GraphModule:
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.sin_.default
        return graph_module

    x = torch.rand(3)
    options = Options(passes=(break_it,), verify=True)
    with pytest.raises(adjoint.RewriteError, match=r"pass 'write-in-place': .*mutates"):
        compile_graph(graph(), [x], options)(x)


def test_a_joint_pass_that_breaks_the_graph_is_named() -> None:
    @graph_pass("forget-modes", "joint")
    def break_it(graph_module: fx.GraphModule) -> fx.GraphModule:
        for node in graph_module.graph.nodes:
            node.meta.pop("mode", None)
        return graph_module

    x = leaf(3)
    options = Options(passes=(break_it,), verify=True)
    with pytest.raises(adjoint.RewriteError, match="pass 'forget-modes': ") as error:
        compile_graph(graph(), [x], options)(x)
    assert isinstance(error.value.__cause__, GraphError)


@pytest.mark.parametrize("target", ["native", "loops", "reference"])
def test_every_target_runs_what_the_last_pass_made(target: Any) -> None:
    @graph_pass("cosines", "post")
    def cosines(graph_module: fx.GraphModule) -> fx.GraphModule:
        for node in graph_module.graph.find_nodes(op="call_function", target=aten.sin.default):
            node.target = aten.cos.default
        return graph_module

    compiled = adjoint.compile(torch.sin, target=target, passes=(cosines,))
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).cos())


def test_transforms_take_the_same_options() -> None:
    x = torch.rand(3, dtype=torch.float64)
    ran: list[str] = []

    @graph_pass("noted", "joint")
    def noted(graph_module: fx.GraphModule) -> fx.GraphModule:
        ran.append("noted")
        return graph_module

    options = {"passes": (noted,), "target": "reference", "verify": True}

    def loss(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    value, gradient = adjoint.value_and_grad(loss, options=options)(x)
    torch.testing.assert_close((value, gradient), (loss(x), x.cos() * x + x.sin()))
    assert ran
    with pytest.raises(ValueError, match="unknown option 'tarquet'"):
        adjoint.grad(loss, options={"tarquet": "native"})


def test_capture_and_run() -> None:
    x = leaf(3)
    captured = adjoint.capture(program, x)
    assert torch.equal(adjoint.run(captured, x), program(x))
    assert "aten.sin.default" in captured.show()


def test_passes_that_are_skipped_do_not_run() -> None:
    seen: list[Sighting] = []
    x = leaf(3)
    skipped = ("merge-views", "narrow-masks")
    options = Options(target="native", skip_passes=skipped)
    (result,) = compile_graph(graph(), [x], options, seen.append)(x)
    torch.testing.assert_close(result, program(x))
    assert not {each.stage for each in seen} & set(skipped)
    with pytest.raises(
        adjoint.RewriteError,
        match=r"option skip_passes names 'merge-vews'; choose from: .*merge-views",
    ):
        Compiler(Options(skip_passes=("merge-vews",)))


def test_a_pass_says_what_it_did() -> None:
    seen: list[Sighting] = []
    x = leaf(3)
    compile_graph(graph(), [x], Options(target="native"), seen.append)(x)
    passes = [each for each in seen if each.nodes is not None]
    assert {each.stage for each in passes} >= {"fuse-attention", "merge-views", "narrow-masks"}
    assert all(each.nodes is None for each in seen if each.stage in ("capture", "lower"))
