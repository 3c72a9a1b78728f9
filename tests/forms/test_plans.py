from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.forms.form import Malformed, Unwritable
from adjoint.forms.graph_reading import Inapplicable
from adjoint.forms.graphs import Ground
from adjoint.forms.plans import check, read_plan, written_plan
from adjoint.loops.plan import HeldConstant, LibraryCall, Plan
from adjoint.loops.show import identity, show_plan
from adjoint.target import Target
from tests.forms.corpus import CASES
from tests.lowering import DRAWING_GRID, THREADS


def plans_of(name: str, dynamic: bool, target: Target) -> list[tuple[Plan, fx.GraphModule]]:
    """The plans of a program and of its first backward graph."""
    function, args = CASES[name]
    compiler = Compiler()
    graph_module = capture(function, *args, dynamic=dynamic).graph_module
    graphs = [graph_module]
    inputs = graph_module.graph.find_nodes(op="placeholder")
    wrt = [n for n, node in enumerate(inputs) if _is_float(node)]
    if name not in ("branches", "derivative inside"):
        derivative = compiler.derivative(graph_module, wrt)
        if derivative is not None:
            graphs += [derivative.runs, derivative.first_backward.graph_module]
    found = [(compiler.plan(each, target), each) for each in graphs]
    return [(plan, graph) for plan, graph in found if plan is not None]


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_read_as_it_was_written(name: str, dynamic: bool) -> None:
    count = 0
    for target in (THREADS, DRAWING_GRID):
        for plan, graph_module in plans_of(name, dynamic, target):
            ground = Ground(graph_module)
            text = written_plan(plan, ground)
            again = read_plan(text, ground)
            assert written_plan(again, ground) == text
            assert show_plan(again) == show_plan(plan)
            kernels = [identity(each.kernel) for each in again.launches]
            assert kernels == [identity(each.kernel) for each in plan.launches]
            assert again.symbols == plan.symbols
            assert again.assumed == plan.assumed
            assert again.slots == plan.slots
            assert _targets(again) == _targets(plan)
            count += 1
    assert count >= 2 or name in ("attended", "branches")


def _targets(plan: Plan) -> list[Any]:
    calls = [step for step in plan.steps if isinstance(step, LibraryCall)]
    return [call.op or type(call.target) for call in calls]


def test_the_lines_are_those_of_the_graph_at_hand() -> None:
    ((plan, graph_module),) = plans_of("gathered", False, THREADS)[:1]
    ground = Ground(graph_module)
    text = written_plan(plan, ground)
    moved = Ground(graph_module)
    moved.lines = {replace(line, file="elsewhere.py"): n for line, n in ground.lines.items()}
    again = read_plan(text, moved)
    assert {line.file for launch in again.launches for line in launch.kernel.lines} == {
        "elsewhere.py"
    }
    lines = [step.line for step in again.steps if isinstance(step, LibraryCall)]
    assert any("elsewhere.py" in line for line in lines)


def test_a_constant_is_that_of_the_graph_at_hand() -> None:
    ((plan, graph_module),) = plans_of("constant", False, THREADS)[:1]
    text = written_plan(plan, Ground(graph_module))
    with pytest.raises(Unwritable, match="a constant without its graph"):
        written_plan(plan)
    other = capture(*CASES["pointwise"][:1], *CASES["pointwise"][1]).graph_module
    with pytest.raises(Malformed, match="the graph has no constant"):
        read_plan(text, Ground(other))


def _changes(plan: Plan) -> dict[str, Plan]:
    slots = plan.slots
    launch = plan.launches[0]
    return {
        "slots": replace(plan, slots=slots[1:]),
        "inputs": replace(plan, inputs=(len(slots),)),
        "symbols": replace(plan, symbols=((None, 0, 0),)),
        "outputs": replace(plan, outputs=replace(_argument(plan), slot=len(slots))),
        "operands": replace(plan, steps=(replace(launch, operands=launch.operands[1:]),)),
        "dtypes": replace(
            plan, slots=tuple(replace(slot, dtype=torch.int8, shape=slot.shape) for slot in slots)
        ),
        "shapes": replace(plan, slots=tuple(replace(slot, shape=None) for slot in slots)),
    }


def _argument(plan: Plan) -> Any:
    return plan.outputs[0]


@pytest.mark.parametrize(
    "change", ["slots", "inputs", "symbols", "outputs", "operands", "dtypes", "shapes"]
)
def test_numbers_out_of_bounds(change: str) -> None:
    ((plan, _),) = plans_of("pointwise", False, THREADS)[:1]
    check(plan)
    with pytest.raises(Malformed):
        check(_changes(plan)[change])


@pytest.mark.parametrize("times", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_text_crashes_the_reader(times: int) -> None:
    """Random changes of the text and of its structure: it is read, or refused."""
    ((plan, graph_module),) = plans_of("gathered", True, THREADS)[:1]
    ground = Ground(graph_module)
    text = written_plan(plan, ground)
    chance = random.Random(0)
    refused = 0
    for _ in range(times):
        refused += is_refused(partial(read_plan, mutated(text, chance), ground))
    assert refused > times // 2


def is_refused(read: Callable[[], object]) -> bool:
    try:
        read()
    except (Malformed, Inapplicable):
        return True
    return False


def mutated(text: str, chance: random.Random) -> str:
    """The text with a few bytes or a few parts of its structure changed."""
    if chance.random() < 0.3:
        characters = list(text)
        for _ in range(chance.randint(1, 4)):
            characters[chance.randrange(len(characters))] = chr(chance.randrange(32, 127))
        return "".join(characters)
    tree = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        at = tree
        while isinstance(at, list) and at:
            place = chance.randrange(len(at))
            if not isinstance(at[place], list) or not at[place] or chance.random() < 0.2:
                at[place] = copy.deepcopy(chance.choice(_REPLACEMENTS))
                break
            at = at[place]
    return json.dumps(tree)


_REPLACEMENTS: list[Any] = [
    *(None, True, -1, 0, 1, 10**30, "", "text", [], ["tuple"], ["list", 1], ["shared", 0]),
    *(["function", "require_within"], ["float", "nan"], ["expr", ["Symbol", "s0", "integer"]]),
    *(["op", "aten::mm", "default", ""], ["dict", [1, 2]], ["Slot", 0], ["eager", ["error", "x"]]),
]


def test_a_constant_that_is_no_tensor_is_not_written() -> None:
    ((plan, graph_module),) = plans_of("constant", False, THREADS)[:1]
    steps = [
        replace(step, target=HeldConstant("made", object()))
        if isinstance(step, LibraryCall) and isinstance(step.target, HeldConstant)
        else step
        for step in plan.steps
    ]
    with pytest.raises(Unwritable, match="made is no constant of the graph"):
        written_plan(replace(plan, steps=tuple(steps)), Ground(graph_module))


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (3, "it is no plan"),
        (["eager", 3], "only operators are called"),
        (["eager", ["error", "IndexError"]], "only operators are called"),
        (["held", "nothing"], "the graph has no constant nothing"),
        (["constant", 3, "float32", [0], "", "cpu"], "a constant has a name"),
    ],
)
def test_what_is_no_plan(tree: Any, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_plan(json.dumps([[], tree]))
