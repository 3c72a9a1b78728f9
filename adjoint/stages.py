"""Every stage of every order, printed: what `adjoint show --stages` does.

An observer renders what a stage made at once, because later passes may change the same graph.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import fx

from adjoint.backend import adjoint
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import Backward, Derivative, Joint
from adjoint.graph.leaves import requires_grad
from adjoint.graph.show import show
from adjoint.kernels import CompiledKernels
from adjoint.loops.plan import Plan
from adjoint.loops.show import show_plan
from adjoint.observing import Observer, Sighting
from adjoint.open_types import UserFunction
from adjoint.passes import Pass
from adjoint.quantities import counted
from adjoint.torch_private import trees
from adjoint.torch_private.autograd import leaves_of_history


@dataclass(frozen=True)
class Shown:
    """One stage, as text."""

    stage: str
    order: int
    seconds: float
    text: str
    nodes: tuple[int, int] | None = None
    matches: Mapping[str, int] = field(default_factory=dict)
    before: str | None = None
    """Of a pass: what it was given."""

    @property
    def heading(self) -> str:
        which = "the program" if self.order == 0 else f"derivative of order {self.order}"
        line = f"# {self.stage} - {which} - {1e3 * self.seconds:.1f} ms"
        if self.nodes is not None and self.nodes[0] != self.nodes[1]:
            line += f" - {self.nodes[0]} to {self.nodes[1]} nodes"
        if self.matches:
            line += " - " + ", ".join(f"{rule} {count}" for rule, count in self.matches.items())
        return line


class StageLog:
    """The observer that keeps the text of each stage."""

    def __init__(self, of_pass: str | None = None) -> None:
        """`of_pass`: keep what this pass is given, too."""
        self.shown: list[Shown] = []
        self.passes: list[str] = []
        """The names of the passes that ran, in the order of their first runs."""
        self._of_pass = of_pass
        self._before: str | None = None

    def given(self, stage: str, order: int, graph_module: fx.GraphModule) -> None:
        """Note what a pass is given, before it changes it."""
        if stage not in self.passes:
            self.passes.append(stage)
        self._before = text_of(graph_module) if stage == self._of_pass else None

    def __call__(self, sighting: Sighting) -> None:
        text = text_of(sighting.value)
        before = self._before if sighting.stage == self._of_pass else None
        self.shown.append(
            Shown(
                sighting.stage,
                sighting.order,
                sighting.seconds,
                text,
                sighting.nodes,
                sighting.matches,
                before,
            )
        )

    def chosen(self, only: str | None = None) -> list[Shown]:
        """All stages, or those of one name."""
        return [each for each in self.shown if only in (None, each.stage)]

    @property
    def names(self) -> list[str]:
        """The names of the stages and passes that ran, each once."""
        return list(dict.fromkeys(each.stage for each in self.shown))


def text_of(value: object) -> str:
    """What a stage made, for a reader."""
    match value:
        case CapturedProgram():
            return value.show()
        case Joint():
            return show(value.graph_module, "joint")
        case Derivative():
            saved = ", ".join(each.describe() for each in value.saved) or "nothing"
            backward = "" if value.first is None else f"\n\n{text_of(value.first)}"
            return f"{show(value.runs, 'forward')}\n# saves {saved}{backward}"
        case Backward():
            return show(value.graph_module, "backward")
        case fx.GraphModule():
            return show(value)
        case Plan():
            return show_plan(value)
        case CompiledKernels():
            count, refused = len(value.code), len(value.refused)
            text = f"{counted(count, 'kernel')} compiled"
            return f"{text}, {refused} refused" if refused else text
        case None:
            return "nothing: it runs op by op"
        case _:
            return type(value).__name__


def watched(
    function: Callable[..., object],
    args: Sequence[object],
    kwargs: dict[str, object],
    order: int,
    dynamic: bool = False,
    passes: Sequence[Pass] = (),
    of_pass: str | None = None,
) -> StageLog:
    """Compile and call `function`, differentiate its result `order` times, and log every stage.

    `of_pass`: keep what this pass is given, too.
    """
    log = StageLog(of_pass)
    options = {"passes": list(passes)}
    observe(log, function, args, kwargs, order, dynamic, options, writes=True)
    return log


def observe(
    observer: Observer,
    function: UserFunction,
    args: Sequence[object],
    kwargs: dict[str, object],
    order: int,
    dynamic: bool = False,
    options: Mapping[str, object] | None = None,
    resets: bool = True,
    again: bool = True,
    writes: bool = False,
) -> list[list[object]]:
    """Compile and call `function`, and differentiate its result `order` times, observed.

    Returns what it returned, and the gradients of each order that there is.  `resets`: forget what
    the process has compiled, before and after.  `again`: the last gradients can be differentiated
    again.  `writes`: the function may write to its arguments, which are copies and not leaves then.
    """
    if resets:
        torch.compiler.reset()
    backend = partial(adjoint, observer=observer)
    vars(backend)["__name__"] = "adjoint"  # By which Dynamo's frames are known as ours.
    compiled = torch.compile(
        function,
        backend=backend,
        dynamic=dynamic or None,
        options=dict(options or {}),  # type: ignore[arg-type]
    )
    args, kwargs = trees.map_leaves(_leaf if order else _same, (tuple(args), kwargs))
    inputs = [each for each in trees.leaves((args, kwargs)) if requires_grad(each)]
    if writes:
        args, kwargs = trees.map_leaves(_unleaved, (args, kwargs))
    results = trees.leaves(compiled(*args, **kwargs))
    # Parameters, and tensors that the function closes over.
    known = {id(each) for each in inputs}
    reached = leaves_of_history(each for each in results if requires_grad(each))
    inputs += [each for each in reached if id(each) not in known]
    found = [list(results)]
    for number in range(order):
        results = [each for each in results if requires_grad(each)]
        if not results or not inputs:
            break
        total = torch.stack([each.sum() for each in results]).sum()
        more = again or number + 1 < order
        results = list(torch.autograd.grad(total, inputs, create_graph=more, allow_unused=True))
        found.append(results)
    if resets:
        torch.compiler.reset()
    return found


def _same(leaf: object) -> object:
    return leaf


def _leaf(leaf: object) -> object:
    """A tensor that gradients are taken of."""
    if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
        return leaf.detach().clone().requires_grad_()
    return leaf


def _unleaved(leaf: object) -> object:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def printed(shown: Sequence[Shown]) -> str:
    """Stages one after another, each under its heading."""
    return "\n\n".join(f"{each.heading}\n{each.text}" for each in shown)


def differences(shown: Sequence[Shown]) -> str:
    """The difference of each stage's text from that of the stage before it, within an order."""
    before: dict[int, Shown] = {}
    found: list[str] = []
    for each in shown:
        last = before.get(each.order)
        before[each.order] = each
        if last is None:
            found.append(f"{each.heading}\n{each.text}")
            continue
        lines = difflib.unified_diff(
            last.text.splitlines(), each.text.splitlines(), last.stage, each.stage, lineterm="", n=1
        )
        found.append(f"{each.heading}\n" + ("\n".join(lines) or "(no change)"))
    return "\n\n".join(found)


def before_and_after(shown: Sequence[Shown]) -> str:
    """What each run of a pass was given, and what it made of it, as a difference of texts."""
    found: list[str] = []
    for each in shown:
        before = (each.before or "").splitlines()
        lines = difflib.unified_diff(
            before, each.text.splitlines(), "before", "after", lineterm="", n=max(len(before), 1)
        )
        found.append(f"{each.heading}\n" + ("\n".join(lines) or f"(no change)\n{each.text}"))
    return "\n\n".join(found)
