"""The cache of captures, derivatives and programs, for later processes.

Every entry depends on its graph and on the versions of adjoint and torch; a capture also on modes
and settings of torch, a derivative and a program on options, a program on its target.
These are the facts by which it is found (`store/`).  Not cached is what has no text (`forms/`), and
what depends on the user's code: no digest of a function tells everything that it reads.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, cast

import sympy
import torch
from torch import fx

from adjoint.forms.annotations import check_of
from adjoint.forms.dynamo_graphs import DynamoGround
from adjoint.forms.form import Malformed, Unwritable, malformed_if_it_fails
from adjoint.forms.graph_reading import Inapplicable, read, require_fitting
from adjoint.forms.graphs import Ground, written
from adjoint.forms.plans import read_plan, without_bodies, written_plan
from adjoint.forms.vocabulary import KNOWN_NAMESPACES
from adjoint.graph.calling import CallingConvention
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.metadata import inputs_of
from adjoint.graph.show import show_source
from adjoint.graph.sizes import size_hints
from adjoint.kernels import CompiledKernels, load_kept
from adjoint.loops.plan import Plan
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
from adjoint.store.versions import versions
from adjoint.target import Loader, Target
from adjoint.torch_private.dynamo import is_general_attempt
from adjoint.torch_private.expressions import Ranges, assume, narrow, ranges
from adjoint.torch_private.learned_fakes import learned
from adjoint.torch_private.modes import settings

Value = TypeVar("Value")
AnyGround = TypeVar("AnyGround", bound=Ground)

# The graph, its calling convention, the ranges of its sizes, and what torch knows of them.
CachedCapture: TypeAlias = tuple[fx.GraphModule, CallingConvention, Ranges, list[str]]


@dataclass(frozen=True)
class CompiledProgram:
    """The result of compiling a graph."""

    program: PlanProgram | None
    """None: it runs op by op."""
    plan: Plan | None
    kernels: CompiledKernels | None


@dataclass(frozen=True)
class NoProgram:
    """An entry that says: the graph has no native program, and runs op by op."""


# A longer fact is replaced by its digest.
_LONG_FACT_CHARACTERS = 400


class Cache:
    """The cache of one compiler."""

    def __init__(self, store: Store, options: Options) -> None:
        self.store = store
        self.options = options

    def ground_of(self, graph_module: fx.GraphModule) -> Ground | None:
        """The graph as the ground of cache entries; None if it has no text."""
        # No digest of a pass tells everything that it reads.
        if self.options.passes:
            return None
        return self._with_digest(lambda: Ground(graph_module))

    def _with_digest(self, make: Callable[[], AnyGround]) -> AnyGround | None:
        """The ground, if it has a text; else None."""
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
        """The cached capture of a graph of Dynamo's, or what `make` captures."""
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
            # The text does not hold the tensors that a program closes over.
            if not found.closed_over and not found.bound:
                bounds = ranges(ground.fake_mode.shape_env, ground.symbols)
                value = (found.graph_module, found.calling, bounds, ground.sizes())
                self._keep("capture", facts, value, ground, ground.guards()[len(known) :], claim)
            return found

        find = functools.partial(self._find_captured, facts, ground)
        return self.store.found_or_made("capture", facts, find, made)

    def _find_captured(self, facts: dict[str, str], ground: DynamoGround) -> CapturedProgram | None:
        is_sound = check_of(CachedCapture)
        found = self._find_made("capture", facts, ground, is_sound)
        if found is None:
            return None
        graph_module, calling, bounds, sizes = cast("CachedCapture", found[0])
        try:
            require_fitting(calling, len(ground.inputs), graph_module)
        except Malformed as error:
            self.store.reject("capture", facts, error)
            return None
        narrow(ground.fake_mode.shape_env, ground.symbols, bounds)
        # Dynamo must have the guards that the original capture led to.
        return CapturedProgram(graph_module, calling) if ground.sizes() == sizes else None

    # Derivatives

    def derived(
        self,
        graph_module: fx.GraphModule,
        asked: str,
        make: Callable[[], Value],
        kind: object,
    ) -> Value:
        """The cached result of `make`, which derives something from a graph, or a new one.

        `asked`: what is derived, as one of the facts.  `kind`: the type of the result, against
        which a cached one is checked.
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
        """The cached value for these facts, in a tuple; None: a miss."""
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
            # Serialized at once, because later passes may change the graphs.
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
        """The cached program of a graph, or the one that `make` compiles.

        `overwrites`: new values of inputs may be stored in the inputs.
        """
        ground = self.ground_of(graph_module) if is_cacheable(target) else None
        if ground is None:
            return make().program
        facts = {**self._program_facts(ground, target), "overwrites": str(overwrites)}

        def made(claim: Claim) -> PlanProgram | NoProgram:
            found = make()
            if found.kernels is None or not found.kernels.refused:
                payload = functools.partial(_written, ground, found)
                # The writing thread must not read constants of a GPU: a capture may be under way.
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
        """The cached program for these facts; None: a miss."""
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


class NoCache:
    """No cache: every lookup is a miss, and nothing is stored."""

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


def cache_for(store: Store | None, options: Options, observer: Observer) -> Cache | NoCache:
    """The cache in a store; none if an observer or watcher wants to see every stage."""
    if store is None or observer is not unobserved or is_watched():
        return NoCache()
    return Cache(store, options)


def label_of(graph_module: fx.GraphModule) -> str:
    """The first of the user's lines that a graph computes."""
    for node in graph_module.graph.nodes:
        if node.op == "call_function" and node.meta.get("source") is not None:
            return show_source(node.meta["source"])
    return ""


def _described(target: Target) -> str:
    """A target without its machine, as a text that is the same in every process."""
    features = sorted(each.value for each in target.features)
    return f"{replace(target, machine=None, features=frozenset())} {features}"


def is_cacheable(target: Target) -> bool:
    """Whether programs for a target are cached: those that have machine code."""
    return target.loader in (Loader.LLVM, Loader.CUDA)


def _written(ground: Ground, made: CompiledProgram) -> bytes | None:
    """The payload of a program, or of a graph that runs op by op; None: the program has no text."""
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


def _read(text: bytes, ground: Ground) -> tuple[Plan | None, list[tuple[str, CodeSource]]]:
    """The plan, and where the code of its launches is cached; raises `Malformed`."""
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
