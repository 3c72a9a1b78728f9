"""The sentence: capture, optimize, differentiate, optimize, partition, optimize, lower, emit, load.

`Compiler` runs these stages for graphs under `torch.compile` and for transforms alike.  Derivatives
are compiled on demand: for each order autograd, through the runtime, calls the same methods again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from torch import fx

from adjoint.cache import Cache, CompiledProgram, NoCache, cache_for
from adjoint.capture.direct import Dynamic, capture_call
from adjoint.capture.dynamo import capture_graph
from adjoint.differentiate.activity import outputs_requiring_grad, outputs_with_derivative
from adjoint.differentiate.eager import is_left_to_eager
from adjoint.differentiate.segments import cut_into_segments
from adjoint.differentiate.selections import with_finite_factors
from adjoint.differentiate.sweep import differentiate, differentiate_where_possible
from adjoint.failing import call_user_code
from adjoint.graph.boundary import attempt, differentiating
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.copying import copied
from adjoint.graph.derivative import Backward, Derivative, Joint, order_of_graph
from adjoint.graph.evaluation import evaluate, evaluate_taking
from adjoint.graph.metadata import inputs_of, outputs_of
from adjoint.graph.sizes import assuming, size_hints
from adjoint.kernels import CompiledKernels, compile_kernels
from adjoint.loops.chain_footprint import ChainFootprint
from adjoint.loops.footprint import Footprint
from adjoint.loops.plan import Plan
from adjoint.lower.assumptions import noting_assumptions
from adjoint.lower.planning import lower
from adjoint.optimize.compositions import compose_for_torch
from adjoint.partition.extraction import NotSaved
from adjoint.partition.split import Split, narrowed
from adjoint.passes import Pass, extended
from adjoint.pipeline import JOINT, LINEAR, POST, lowering, primal, require_known_passes
from adjoint.predicting import footprint_of_pair, footprint_of_plan
from adjoint.runtime.bridge import DifferentiableGraph
from adjoint.runtime.calling import Runnable
from adjoint.runtime.executable import Checker, Executable
from adjoint.runtime.loading import load_program
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.sized_programs import SizedPrograms
from adjoint.splitting import Splitting
from adjoint.stage_runner import StageRunner
from adjoint.store.keeping import Store, keeping_in, store_for
from adjoint.target import Target
from adjoint.targets import target_of
from adjoint.torch_private.modes import isolated

# A graph that is about to run, after the passes on such graphs.
Optimize: TypeAlias = Callable[[fx.GraphModule], fx.GraphModule]


@dataclass(frozen=True)
class Compiler(StageRunner):
    """Compiles graphs, their derivatives, and the derivatives of those, by the same stages."""

    reported: set[str] | None = None
    """Failures that the user has been warned of, if this compiler serves one program."""
    checker: Checker | None = None
    """Compares gradients with eager's, with the option `check`."""

    def __post_init__(self) -> None:
        require_known_passes(self.options)

    # capture

    def captured(
        self, graph_module: fx.GraphModule, examples: Sequence[object], anew: bool = False
    ) -> CapturedProgram:
        """A graph of Dynamo's as a functional graph with its calling convention."""
        make = partial(capture_graph, graph_module, examples, anew, self.cache)
        with self.during("capturing", graph_module):
            return self.stage("capture", 0, make)

    def captured_call(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        dynamic: Dynamic,
    ) -> CapturedProgram:
        """A call of a Python function as a functional graph with its calling convention."""
        return self.stage("capture", 0, lambda: capture_call(function, args, kwargs, dynamic))

    def differentiable(self, graph_module: fx.GraphModule) -> Runnable:
        """The graph as a function that eager code can call and autograd can differentiate."""
        with differentiating(graph_module):
            if is_left_to_eager(graph_module):
                return partial(evaluate, graph_module)
            return DifferentiableGraph(graph_module, self)

    # differentiate, optimize, partition

    def derivative(
        self,
        graph_module: fx.GraphModule,
        wrt: Sequence[int],
        segmented: bool = False,
        inner: bool = False,
    ) -> Derivative | None:
        """The graph with saved values and its first backward graph.

        `wrt` are positions of inputs; None if no output requires grad for them.  `segmented`:
        results can be differentiated with respect to each other.  `inner`: what is derived is part
        of a function that will be differentiated again.
        """
        asked = f"derivative wrt {tuple(wrt)}{' in segments' * segmented}{' inside' * inner}"
        make = partial(self._derived, graph_module, wrt, segmented, inner)
        with self._differentiating(graph_module):
            return self.cache.derived(graph_module, asked, make, Derivative | None)

    def _derived(
        self, graph_module: fx.GraphModule, wrt: Sequence[int], segmented: bool, inner: bool
    ) -> Derivative | None:
        with assuming(graph_module):
            requiring = outputs_requiring_grad(graph_module, wrt)
            of = outputs_with_derivative(graph_module, wrt)
            if not of and not requiring:
                return None
            is_program = order_of_graph(graph_module.graph) == 0
            if is_program:
                graph_module = self._primal(graph_module, wrt, inner)
            results = len(outputs_of(graph_module.graph))
            cuts: tuple[int, ...] = ()
            # Gradients have autograd nodes already: those of the results they are gradients of.
            if segmented and is_program:
                graph_module, cuts = cut_into_segments(graph_module, wrt)
                count = len(inputs_of(graph_module.graph))
                wrt = [*wrt, *range(count - len(cuts), count)]
                of = outputs_with_derivative(graph_module, wrt) if cuts else of
            joint = self._joint(graph_module, of, wrt)
            split = Splitting(
                self, self._joint, self.footprint, wrt, results, frozenset(requiring), cuts
            )
            return self.stage("partition", joint.order, partial(split.derivative, joint))

    def _primal(
        self, graph_module: fx.GraphModule, wrt: Sequence[int], inner: bool = False
    ) -> fx.GraphModule:
        """The program, optimized before it is differentiated with respect to the inputs `wrt`."""
        own = primal(wrt, self.options.eager_rng)
        passes = extended(own, "primal", self.options.passes)
        # The second derivative of a fused operator computes again what the first could share.
        passes = tuple(each for each in passes if not inner or each not in own)
        # The graph may be differentiated with respect to other inputs.
        given = graph_module if passes == own else copied(graph_module)
        return self.passes(passes, given, 0)

    def backward(self, derivative: Derivative, of: Sequence[int], wrt: Sequence[int]) -> Backward:
        """The backward graph for cotangents of the outputs at the positions `of`."""
        first = derivative.first
        if first is not None and tuple(of) == derivative.cotangents_of(first):
            return first
        graph_module = derivative.graph_module
        asked = f"backward of {tuple(of)} wrt {tuple(wrt)} given {derivative.saved}"
        with self._differentiating(graph_module):
            try:
                make = partial(self._backward, derivative, of, wrt)
                return self.cache.derived(graph_module, asked, make, Backward)
            except NotSaved:
                # The first backward graph needs only saved values; missing cotangents are zeros.
                if first is None or not set(of) <= set(derivative.cotangents_of(first)):
                    raise
                return first

    def _backward(self, derivative: Derivative, of: Sequence[int], wrt: Sequence[int]) -> Backward:
        joint = self._joint(derivative.graph_module, of, wrt, everywhere=True)
        split = Split(joint)
        nodes = [node for node, _ in split.results]
        make = partial(split.backward, nodes, derivative.saved)
        return self.stage("partition", joint.order, make)

    def narrowed(self, backward: Backward, wanted: frozenset[int]) -> Backward:
        """A backward graph that computes only the gradients at the positions `wanted`."""
        return self.stage("partition", backward.order, lambda: narrowed(backward, wanted))

    def transposed(self, backward: fx.GraphModule, saved: int) -> tuple[fx.GraphModule, list[int]]:
        """The graph of forward mode: the transpose of a backward graph, linear in its tangents.

        `backward` takes `saved` values, then tangents of the outputs.  The graph takes the same
        inputs, and then tangents of the primal inputs; it returns tangents of the outputs.  Its
        value does not depend on the tangents that `backward` takes, so zeros may be passed.  Also
        returns which inputs it depends on.
        """
        make = partial(self._transposed, backward, saved)
        with self._differentiating(backward):
            asked = f"transpose after {saved} inputs"
            return self.cache.derived(backward, asked, make, tuple[fx.GraphModule, list[int]])

    def _transposed(self, backward: fx.GraphModule, saved: int) -> tuple[fx.GraphModule, list[int]]:
        gradients = outputs_of(backward.graph)
        present = [i for i, node in enumerate(gradients) if isinstance(node, fx.Node)]
        inputs = [node for node in backward.graph.nodes if node.op == "placeholder"]
        with isolated(), assuming(backward):
            linear = with_finite_factors(backward, inputs[saved:])
        make = partial(differentiate, linear, present, range(saved, len(inputs)))
        order = 1 + order_of_graph(linear.graph)
        joint = self._optimized(self.stage("differentiate", order, make), LINEAR)
        made = self.stage("partition", order, Split(joint).transposed)
        return made, present

    def composed(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph with ops that torch can differentiate, for running it op by op."""
        return compose_for_torch(graph_module)

    def _joint(
        self,
        graph_module: fx.GraphModule,
        of: Sequence[int],
        wrt: Sequence[int],
        everywhere: bool = False,
    ) -> Joint:
        """The optimized joint graph of outputs that have a derivative; `everywhere`: of all."""
        # With `unsupported="eager"`, eager takes over the whole graph, before anything has run.
        some = partial(differentiate_where_possible, some=self.options.unsupported == "eager")
        make = differentiate if everywhere else some
        order = 1 + order_of_graph(graph_module.graph)
        joint = self.stage("differentiate", order, lambda: make(graph_module, of, wrt))
        return self._optimized(joint, extended(JOINT, "joint", self.options.passes))

    def _optimized(self, joint: Joint, passes: Sequence[Pass]) -> Joint:
        return replace(joint, graph_module=self.passes(passes, joint.graph_module, joint.order))

    # optimize, lower, emit, load

    def program(self, graph_module: fx.GraphModule, overwrites: bool = False) -> Executable:
        """The graph, compiled and loaded.

        `overwrites`: the program may store new values of inputs in the inputs.
        """
        make = partial(self._program, graph_module, overwrites)
        with self.during("lowering", graph_module):
            made = attempt(make, graph_module, reported=self.reported)
        return made or partial(evaluate_taking, graph_module)

    def whole(self, graph_module: fx.GraphModule) -> Executable:
        """A graph that is not differentiated, compiled and loaded."""
        optimized = partial(self.undifferentiated, graph_module)
        made = attempt(optimized, graph_module, reported=self.reported)
        return self.program(made or graph_module, overwrites=True)

    def _program(self, graph_module: fx.GraphModule, overwrites: bool) -> Executable:
        if self.options.target == "reference":
            return partial(evaluate_taking, self.ready_to_run(graph_module))
        if self.options.passes:
            # A user's passes run once, and not again for other sizes.
            native = partial(self.native, overwrites=overwrites)
            ready = self.ready_to_run(graph_module)
            return SizedPrograms(ready, native, self.during, self.reported)
        # Our own passes run only where a program is compiled: a cached one needs none.
        optimize = functools.cache(self.ready_to_run)
        native = partial(self.native, overwrites=overwrites, optimize=optimize)
        programs = SizedPrograms(graph_module, native, self.during, self.reported)
        if not programs.is_native:
            programs.graph_module = optimize(graph_module)
        return programs

    def lowered(self, graph_module: fx.GraphModule, called: frozenset[str]) -> PlanProgram | None:
        """The graph as native code in which the nodes `called` are library calls."""
        return self.native(self.ready_to_run(graph_module), called=called)

    def undifferentiated(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """A graph that is not differentiated, after the passes on the user's program."""
        is_program = order_of_graph(graph_module.graph) == 0
        return self._primal(graph_module, ()) if is_program else graph_module

    def ready_to_run(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph, optimized before it runs; a copy, because it may be differentiated later."""
        passes = extended(POST, "post", self.options.passes)
        # Our own passes copy the graph if they change it.
        given = graph_module if passes == POST else copied(graph_module)
        return self.passes(passes, given, order_of_graph(graph_module.graph))

    def native(
        self,
        graph_module: fx.GraphModule,
        overwrites: bool = False,
        called: frozenset[str] = frozenset(),
        optimize: Optimize | None = None,
    ) -> PlanProgram | None:
        """The graph as native code for its symbolic sizes; None if it should run op by op.

        If kernels draw random numbers, the program takes one more input (`Plan.streams`).
        `called`: names of nodes that have to be library calls.  `optimize`: makes the graph ready
        to run, if no program of it is cached; None: it is ready.
        """
        target = target_of(graph_module, self.options)

        def make() -> CompiledProgram:
            ready = graph_module if optimize is None else optimize(graph_module)
            return self._compiled(ready, target, overwrites, called)

        with keeping_in(self.store):
            entries = NoCache() if called else self.cache
            return entries.program(graph_module, target, overwrites, make)

    def _compiled(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        overwrites: bool,
        called: frozenset[str],
    ) -> CompiledProgram:
        order = order_of_graph(graph_module.graph)
        kernels: CompiledKernels | None = None
        while (plan := self.plan(graph_module, target, called, overwrites)) is not None:
            kernels = self.stage("emit", order, partial(compile_kernels, plan, target))
            if not kernels.refused:
                load = partial(load_program, plan, kernels.code, target)
                program = self._watched(self.stage("load", order, load), order)
                return CompiledProgram(program, plan, kernels)
            kernels.warn(self.reported)
            # The operators of these kernels become library calls; the rest is fused without them.
            if kernels.refused_nodes <= called:
                break
            called |= kernels.refused_nodes
        return CompiledProgram(None, None, kernels)

    def _watched(self, program: PlanProgram, order: int) -> PlanProgram:
        """The program; or what an observer with a method `running` puts in its place."""
        running = getattr(self.observer, "running", None)
        return program if running is None else call_user_code(running, program, order)

    def plan(
        self,
        graph_module: fx.GraphModule,
        target: Target,
        called: frozenset[str] = frozenset(),
        overwrites: bool = False,
        needs_kernels: bool = True,
    ) -> Plan | None:
        """The plan of a graph on a target; None if the graph should run op by op.

        `called`: names of nodes that have to be library calls.  `overwrites`: new values of inputs
        may be stored in the inputs.  `needs_kernels`: a plan of library calls alone is no use.
        """
        if not target.has_kernels:
            return None
        order = order_of_graph(graph_module.graph)
        passes = extended(lowering(target, overwrites), "lowering", self.options.passes)
        with noting_assumptions(graph_module) as noted:
            # Lowering may change the graph that it is given.
            rewritten = self.passes(passes, copied(graph_module), order)
            plan = self.stage("lower", order, partial(lower, rewritten, target, called, overwrites))
        return noted.usable(plan, needs_kernels)

    # The cache, and predicted memory

    @property
    def store(self) -> Store | None:
        """The folder of the cache; None: there is no cache."""
        return store_for(self.options.cache or False, int(self.options.cache_limit))

    @property
    def cache(self) -> Cache | NoCache:
        """The cache entries of captures, derivatives and programs, if they may be used."""
        return cache_for(self.store, self.options, self.observer)

    def footprint(self, derivative: Derivative) -> ChainFootprint | None:
        """The memory of the forward and the first backward program; None: one runs op by op."""
        forward = self.footprint_of(derivative.runs)
        backward = self.footprint_of(derivative.first_backward.graph_module)
        if forward is None or backward is None:
            return None
        return footprint_of_pair(derivative, forward, backward)

    def footprint_of(self, graph_module: fx.GraphModule) -> Footprint | None:
        """The memory of one program; None: it runs op by op."""
        graph_module = self.ready_to_run(graph_module)
        target = target_of(graph_module, self.options)
        plan = self.plan(graph_module, target)
        sizes = size_hints(graph_module.graph)
        return None if plan is None else footprint_of_plan(plan, target, sizes)

    @contextlib.contextmanager
    def _differentiating(self, graph_module: fx.GraphModule) -> Iterator[None]:
        with differentiating(graph_module), self.during("differentiating", graph_module):
            yield
