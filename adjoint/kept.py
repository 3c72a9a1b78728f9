"""What is kept of compilations: captures, derivatives and programs, by what they were made of.

Each depends on its graph and on the versions of adjoint and torch; a capture also on modes and
settings of torch, a derivative and a program on options and passes, a program on its target.  These
are its facts (`store/`).  What cannot be written as text, and what depends on code of the user's
whose meaning no text says, is not kept.
"""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import sympy
import torch
from torch import fx

from adjoint.forms.annotations import check_of
from adjoint.forms.dynamo_graphs import DynamoGround
from adjoint.forms.form import (
    Malformed,
    Unwritable,
    malformed_if_it_fails,
    require,
)
from adjoint.forms.graph_reading import Inapplicable, read
from adjoint.forms.graphs import Ground, written
from adjoint.forms.plans import read_plan, written_plan
from adjoint.forms.vocabulary import KNOWN_NAMESPACES
from adjoint.graph.calling import (
    BaseOf,
    CallingConvention,
    FromCaller,
    FromGraph,
    MemoryOf,
    View,
)
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.metadata import inputs_of, outputs_of
from adjoint.graph.show import show_source
from adjoint.graph.sizes import size_hints
from adjoint.kernels import CompiledKernels, load_kept
from adjoint.loops.plan import Launch, Plan, RowTiles, Step
from adjoint.observing import Observer, is_watched, unobserved
from adjoint.options import Options
from adjoint.rules.registry import USER_RULES
from adjoint.runtime.code import CodeSource
from adjoint.runtime.cpu.memory import cache_bytes
from adjoint.runtime.loading import load_program
from adjoint.runtime.plans.program import PlanProgram
from adjoint.store.claims import Claim
from adjoint.store.entries import digest_of
from adjoint.store.keeping import Store
from adjoint.target import Loader, Target
from adjoint.torch_private.corrected_fakes import learned
from adjoint.torch_private.dynamo import is_general_attempt
from adjoint.torch_private.expressions import Ranges, assume, narrow, ranges
from adjoint.torch_private.modes import settings

Value = TypeVar("Value")
AnyGround = TypeVar("AnyGround", bound=Ground)

# The graph, how it is called, and what is known of sizes after the capture.
KeptCapture: TypeAlias = tuple[fx.GraphModule, CallingConvention, Ranges, list[str]]


@functools.cache
def versions() -> dict[str, str]:
    """The versions of all that has a part in a compilation."""
    return {
        "adjoint": source_digest(),
        "torch": f"{torch.__version__} {torch.version.cuda or ''}".strip(),
        "python": platform.python_version(),
    }


@functools.cache
def source_digest() -> str:
    """A digest of adjoint's own source: any change of it may change what is compiled."""
    folder = Path(__file__).parent
    parts = [
        f"{path.relative_to(folder).as_posix()} {digest_of(path.read_bytes())}"
        for path in sorted(folder.rglob("*.py"))
        if path.relative_to(folder).parts[0] not in ("atlas", "bench")
    ]
    return digest_of("\n".join(parts))[:16]


@dataclass(frozen=True)
class CompiledProgram:
    """What compiling a graph gave."""

    program: PlanProgram | None
    """None: it runs op by op."""
    plan: Plan | None
    kernels: CompiledKernels | None


@dataclass(frozen=True)
class NoProgram:
    """It was found before that the graph has no native program: it runs op by op."""


# A fact of more letters is a digest.
_LONG_FACT_CHARACTERS = 400


class Kept:
    """The derivatives and programs of one compiler that are kept in a store."""

    def __init__(self, store: Store, options: Options) -> None:
        self.store = store
        self.options = options

    def ground_of(self, graph_module: fx.GraphModule) -> Ground | None:
        """The graph, ready to find what was made of it; None if its text does not say it all."""
        # The code of a pass does not tell what it reads.
        if self.options.passes:
            return None
        return self._with_digest(lambda: Ground(graph_module))

    def _with_digest(self, make: Callable[[], AnyGround]) -> AnyGround | None:
        """A ground that has a text; None: it has none."""
        try:
            ground = make()
            _ = ground.digest
        except Unwritable:
            return None
        except Exception as error:  # noqa: BLE001 - told; the graph is compiled without a text
            self.store.fail(error)
            return None
        return ground

    def _facts(self, ground: Ground) -> dict[str, str]:
        return {
            "subject": ground.digest,
            **versions(),
            "skipped passes": ", ".join(sorted(self.options.skip_passes)),
            "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
            "observed results": digest_of(learned()),
        }

    # Captures

    def captured(
        self, ground_of: Callable[[], DynamoGround], make: Callable[[], CapturedProgram]
    ) -> CapturedProgram:
        """The captured program of a graph of Dynamo's that is kept, or what `make` captures."""
        ground = self._with_digest(ground_of)
        if ground is None:
            return make()
        facts = {
            "subject": ground.digest,
            **versions(),
            **settings(),
            "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
            "observed results": digest_of(learned()),
            "shapes": "general" if is_general_attempt() else "specialized",
        }

        def made(claim: Claim) -> CapturedProgram:
            known = ground.guards()
            found = make()
            # The tensors that a program closes over are not in the text.
            if not found.closed_over and not found.bound:
                bounds = ranges(ground.fake_mode.shape_env, ground.symbols)
                value = (found.graph_module, found.calling, bounds, ground.sizes())
                self._keep("capture", facts, value, ground, ground.guards()[len(known) :], claim)
            return found

        find = functools.partial(self._find_captured, facts, ground)
        return self.store.found_or_made("capture", facts, find, made)

    def _find_captured(self, facts: dict[str, str], ground: DynamoGround) -> CapturedProgram | None:
        is_sound = check_of(KeptCapture)
        found = self._find_made("capture", facts, ground, is_sound)
        if found is None:
            return None
        graph_module, calling, bounds, sizes = cast("KeptCapture", found[0])
        try:
            require_fitting(calling, len(ground.inputs), graph_module)
        except Malformed as error:
            self.store.reject("capture", facts, error)
            return None
        narrow(ground.fake_mode.shape_env, ground.symbols, bounds)
        # Dynamo's guards have to be those that the capture led to.
        return CapturedProgram(graph_module, calling) if ground.sizes() == sizes else None

    # Derivatives

    def derived(
        self,
        graph_module: fx.GraphModule,
        asked: str,
        make: Callable[[], Value],
        kind: object,
    ) -> Value:
        """What `make` derives of a graph, or what was kept of it; `asked` says what that is.

        `kind`: the type of what `make` returns, which is checked of what is read.
        """
        ground = self.ground_of(graph_module)
        if ground is None or USER_RULES or not ground.namespaces <= KNOWN_NAMESPACES:
            return make()
        short = asked if len(asked) < _LONG_FACT_CHARACTERS else digest_of(asked)
        facts = {**self._facts(ground), "asked": short, "unsupported": self.options.unsupported}
        if self.options.memory_budget is not None:
            asked_of = (self.options.memory_budget, self.options.target, self.options.eager_rng)
            facts["memory budget, target and generator"] = str(asked_of)
            facts["processor"] = f"{torch.get_num_threads()} threads, {cache_bytes()} bytes"
            facts["sizes"] = str(size_hints(graph_module.graph))
        find = functools.partial(self._find_made, "derivative", facts, ground, check_of(kind))

        def made(claim: Claim) -> tuple[Value]:
            known = ground.guards()
            value = make()
            self._keep("derivative", facts, value, ground, ground.guards()[len(known) :], claim)
            return (value,)

        return cast("Value", self.store.found_or_made("derivative", facts, find, made)[0])

    def _find_made(
        self, kind: str, facts: dict[str, str], ground: Ground, is_sound: Callable[[object], bool]
    ) -> tuple[object] | None:
        """What was made of a graph and is kept for these facts; None: nothing."""
        text = self.store.get(kind, facts)
        if text is None:
            return None
        try:
            found = read(text, ground)
            if not is_sound(found):
                raise Malformed(f"it is a {type(found).__name__}")
            return (found,)
        except Inapplicable:
            pass
        except Malformed as error:
            self.store.reject(kind, facts, error)
        return None

    def _keep(
        self,
        kind: str,
        facts: dict[str, str],
        made: object,
        ground: Ground,
        assumed: Sequence[sympy.Basic],
        claim: Claim,
    ) -> None:
        try:
            # Now, because graphs may change later.
            content = written(made, ground, assumed).encode()
        except Unwritable:
            return
        except Exception as error:  # noqa: BLE001 - told; what was made is there
            self.store.fail(error)
            return
        label = show_source(next(iter(ground.lines))) if ground.lines else ""
        self.store.put(kind, facts, content, label, claim)

    # Programs

    def program(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        overwrites: bool,
        make: Callable[[], CompiledProgram],
    ) -> PlanProgram | None:
        """The program of a graph that is kept, or else the one that `make` compiles.

        `overwrites`: new values of inputs may be stored in the inputs.
        """
        ground = self.ground_of(graph_module) if is_keepable(target) else None
        if ground is None:
            return make().program
        facts = {**self._program_facts(ground, target), "overwrites": str(overwrites)}

        def made(claim: Claim) -> PlanProgram | NoProgram:
            found = make()
            if found.kernels is None or not found.kernels.refused:
                payload = functools.partial(_written, ground, found)
                # Another thread must not read constants of a GPU, whose work may be captured.
                now = payload if target.loader is Loader.LLVM else payload()
                if now is not None:
                    self.store.put("program", facts, now, label_of(graph_module), claim)
            return found.program or NoProgram()

        find = functools.partial(self._find, ground, target, facts)
        program = self.store.found_or_made("program", facts, find, made)
        return None if isinstance(program, NoProgram) else program

    def _program_facts(self, ground: Ground, target: Target) -> dict[str, str]:
        machine = target.machine
        return {
            **self._facts(ground),
            "target": _described(target),
            "triple": "" if machine is None else machine.triple,
            "cpu": "" if machine is None else machine.cpu,
            "features": "" if machine is None else machine.features,
        }

    def _find(
        self, ground: Ground, target: Target, facts: dict[str, str]
    ) -> PlanProgram | NoProgram | None:
        """The program that is kept for these facts; None: there is none."""
        text = self.store.get("program", facts)
        if text is None:
            return None
        try:
            plan, sources = _read(text, ground)
        except Malformed as error:
            self.store.reject("program", facts, error)
            return None
        if plan is None:
            return NoProgram()
        if not assume(ground.fake_mode.shape_env, plan.assumed):
            return None
        functions = load_kept(sources, target, self.store)
        if functions is None:
            return None
        code = dict(zip(plan.launches, functions, strict=True))
        try:
            return load_program(plan, code, target)
        except Exception as error:  # noqa: BLE001 - told; the graph is compiled
            self.store.fail(error)
            return None


class NothingKept:
    """The cache of a compiler that has none: everything is made."""

    def captured(
        self, ground_of: Callable[[], DynamoGround], make: Callable[[], CapturedProgram]
    ) -> CapturedProgram:
        return make()

    def derived(
        self, graph_module: fx.GraphModule, asked: str, make: Callable[[], Value], kind: object
    ) -> Value:
        return make()

    def program(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        overwrites: bool,
        make: Callable[[], CompiledProgram],
    ) -> PlanProgram | None:
        return make().program


def kept_for(store: Store | None, options: Options, observer: Observer) -> Kept | NothingKept:
    """The entries of a store, unless somebody wants to see how everything is made."""
    if store is None or observer is not unobserved or is_watched():
        return NothingKept()
    return Kept(store, options)


def require_fitting(calling: CallingConvention, inputs: int, graph_module: fx.GraphModule) -> None:
    """Raise `Malformed` unless the calling convention fits this graph and number of inputs."""
    outputs = len(outputs_of(graph_module.graph))
    recipes = calling.recipes
    of_graph = [write.value for write in calling.writes]
    of_caller: list[int] = [each.index for each in calling.placements]
    of_caller += [place for place, _ in calling.versions]
    for each in (*calling.sources, *recipes, *(e.of for e in recipes if isinstance(e, View))):
        match each:
            case FromGraph(index):
                of_graph.append(index)
            case FromCaller(index) | BaseOf(index) | MemoryOf(index):
                of_caller.append(index)
            case _:
                pass
    require(len(calling.sources) == len(inputs_of(graph_module.graph)), "each input has a source")
    require(all(0 <= index < outputs for index in of_graph), "an output of the graph")
    require(all(0 <= index < inputs for index in of_caller), "an input of the caller's")
    require(all(0 <= place < len(recipes) for place in calling.results), "a result has a recipe")


def label_of(graph_module: fx.GraphModule) -> str:
    """The first line of the user's that a graph computes."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.meta.get("source") is not None:
            return show_source(node.meta["source"])
    return ""


def _described(target: Target) -> str:
    """A target without its machine; the same text in every process."""
    features = sorted(each.value for each in target.features)
    return f"{replace(target, machine=None, features=frozenset())} {features}"


def is_keepable(target: Target) -> bool:
    """Whether programs for a target are kept: those that have machine code."""
    return target.loader in (Loader.LLVM, Loader.CUDA)


def _written(ground: Ground, made: CompiledProgram) -> bytes | None:
    """The text of a program, or that there is none; None: it cannot be written."""
    plan, kernels = made.plan, made.kernels
    if plan is None or kernels is None:
        return json.dumps({"plan": None, "code": []}).encode()
    code: list[object] = []
    for launch in plan.launches:
        source = kernels.code[launch].source
        if source is None:
            return None
        code.append([kernels.digests[launch], source.kind, dict(source.facts), source.name])
    try:
        text = written_plan(without_bodies(plan), ground)
    except Unwritable:
        return None
    return json.dumps({"plan": text, "code": code}).encode()


def without_bodies(plan: Plan) -> Plan:
    """The plan, with kernels that say what they take and not what they compute: there is code."""

    def launch(step: Launch) -> Launch:
        return replace(step, kernel=replace(step.kernel, body=()))

    def changed(step: Step) -> Step:
        match step:
            case Launch():
                return launch(step)
            case RowTiles():
                body = tuple(launch(s) if isinstance(s, Launch) else s for s in step.body)
                return replace(step, begin=tuple(map(launch, step.begin)), body=body)
            case _:
                return step

    return replace(plan, steps=tuple(map(changed, plan.steps)))


def _read(text: bytes, ground: Ground) -> tuple[Plan | None, list[tuple[str, CodeSource]]]:
    """The plan and the code of its launches; raises `Malformed`."""
    with malformed_if_it_fails():
        fields = json.loads(text)
        plan_text, code = fields["plan"], fields["code"]
        sources = [
            (_text(digest), CodeSource(_text(kind), _facts(facts), _text(name)))
            for digest, kind, facts, name in code
        ]
    if plan_text is None:
        return None, []
    plan = read_plan(_text(plan_text), ground)
    if len(plan.launches) != len(sources):
        raise Malformed("a launch has code")
    inputs = inputs_of(ground.graph_module.graph)
    if len(plan.inputs) != len(inputs) + bool(plan.streams):
        raise Malformed("the plan is of another graph")
    return plan, sources


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Malformed("a text is expected")
    return value


def _facts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or "subject" not in value:
        raise Malformed("facts are expected")
    return {_text(name): _text(fact) for name, fact in value.items()}
