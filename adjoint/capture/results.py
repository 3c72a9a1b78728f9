"""What a program returns and leaves behind, said as graph outputs and a calling convention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from adjoint.capture import aliasing, geometry
from adjoint.capture.aliasing import Alias
from adjoint.capture.inputs import Inputs, history, version
from adjoint.capture.tracer import Tracer
from adjoint.capture.views import ViewStep
from adjoint.graph.calling import (
    Calling,
    Constant,
    Flag,
    FromCaller,
    FromGraph,
    Made,
    Move,
    Refill,
    Replay,
    RequireGrad,
    Step,
    View,
    Write,
)
from adjoint.graph.descriptors import (
    EffectTokenOut,
    InputMutation,
    IntermediateBase,
    Output,
    Phase,
    Result,
    ViewArgument,
)
from adjoint.graph.metadata import mode_of
from adjoint.torch_private import symbols, trees

aten = torch.ops.aten


class Results:
    """Collects the outputs of a graph, and says how the caller's results are made of them."""

    def __init__(self, tracer: Tracer, inputs: Inputs) -> None:
        self.tracer = tracer
        self.inputs = inputs
        self.outputs: list[fx.Node] = []
        self.descriptors: list[Output | None] = []
        """None for a base until all results that are views of it are known."""
        self._made: list[Made] = []
        self._by_tensor: dict[int, int] = {}
        self._bases: dict[Alias, int] = {}
        self._base_results: dict[int, list[Result]] = {}
        self._numbers: dict[fx.Node, int] = {}

    def calling(self, leaves: Sequence[tuple[str, Any]]) -> Calling:
        """The convention for a program that returned `leaves` (each with its path)."""
        writes = self._writes()
        results = tuple(self._result(i, path, leaf) for i, (path, leaf) in enumerate(leaves))
        moves = self._moves()
        for index, of in self._base_results.items():
            if self.descriptors[index] is None:
                self.descriptors[index] = IntermediateBase(tuple(of))
        if self.tracer.scope.token is not None:
            assert self.tracer.scope.entry_token is not None
            self.inputs.describe_token(self.tracer.scope.entry_token)
            self._output(self.tracer.scope.token, EffectTokenOut(0, Phase.FORWARD))
        placeholders = [n for n in self.tracer.emitter.graph.nodes if n.op == "placeholder"]
        return Calling(
            sources=tuple(self.inputs.sources[node] for node in placeholders),
            moves=moves,
            writes=writes,
            flags=self._flags(),
            versions=self._versions(),
            made=tuple(self._made),
            results=results,
        )

    def _output(self, node: fx.Node, descriptor: Output | None) -> int:
        self.outputs.append(node)
        self.descriptors.append(descriptor)
        return len(self.outputs) - 1

    # What becomes of inputs -------------------------------------------------------------------

    def _writes(self) -> tuple[Write, ...]:
        writes = []
        for place, alias in self.inputs.aliases.items():
            leaf = self.inputs.leaves[place]
            current = self.tracer.scope.aliases.get(id(leaf.value))
            moved_away = current is not None and current.storage is not alias.storage
            if moved_away and alias.written:
                raise self.tracer.unsupported(
                    "set_", "the tensor was written to before it was moved to other memory"
                )
            if not (alias.written or (moved_away and current is not None and current.written)):
                continue
            if moved_away and geometry.root_of(current).tensor is not leaf.value:  # type: ignore[arg-type]
                continue  # It shows memory of another tensor now, which has the write.
            value = self._output(self.tracer.node(leaf.value), InputMutation(leaf.descriptor))
            recorded = history(leaf.value) is not self.inputs.states[place].history
            writes.append(Write(place, value, recorded))
        return tuple(writes)

    def _moves(self) -> tuple[Move, ...]:
        moves = []
        for tensor, ops in self.tracer.moves.items():
            place = self.inputs.index.get(tensor)
            for op, args, kwargs, mode in ops if place is not None else []:
                assert place is not None
                args, named = trees.map_leaves(self._argument, (args, dict(kwargs)))
                moves.append(Move(place, op, tuple(args), tuple(named.items()), mode))
        return tuple(moves)

    def _argument(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._made[self._tensor(leaf, None)]
        return self._number(self.tracer.emitter.number_nodes(leaf))

    def _flags(self) -> tuple[Flag, ...]:
        flags = []
        for place, state in self.inputs.states.items():
            tensor = self.inputs.leaves[place].value
            if tensor.requires_grad != state.requires_grad and tensor.is_leaf:
                detached = any(op is aten.detach_.default for op in self._ops_on(tensor))
                if not detached:
                    flags.append(Flag(place, tensor.requires_grad))
        return tuple(flags)

    def _ops_on(self, tensor: torch.Tensor) -> list[Any]:
        return [op for op, *_ in self.tracer.moves.get(id(tensor), [])]

    def _versions(self) -> tuple[tuple[int, int], ...]:
        advances = []
        for place, state in self.inputs.states.items():
            by = version(self.inputs.leaves[place].value) - state.version
            if by or self.inputs.aliases[place].written:
                advances.append((place, by))
        return tuple(advances)

    # What is returned -------------------------------------------------------------------------

    def _result(self, index: int, path: str, leaf: Any) -> int:
        descriptor = Result(index, f"result{path}")
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf, descriptor)
        if isinstance(leaf, symbols.SYMBOLIC):
            node = self.tracer.emitter.number(leaf)
            if isinstance(node, fx.Node):
                return self._make(FromGraph(self._output(node, descriptor)))
            return self._make(Constant(node))
        return self._make(Constant(leaf))

    def _make(self, made: Made) -> int:
        self._made.append(made)
        return len(self._made) - 1

    def _tensor(self, tensor: torch.Tensor, descriptor: Result | None) -> int:
        if id(tensor) not in self._by_tensor:
            self._by_tensor[id(tensor)] = self._make(self._made_of(tensor, descriptor))
        return self._by_tensor[id(tensor)]

    def _made_of(self, tensor: torch.Tensor, descriptor: Result | None) -> Made:
        if id(tensor) in self.inputs.index:
            return FromCaller(self.inputs.index[id(tensor)])
        steps: list[Step] = []
        chain = []
        for alias in self.tracer.origin(self.tracer.alias(tensor)).ancestors():
            chain.append(alias)
            place = self._input_place(alias)
            if place is not None:
                steps = self._steps(chain[:-1])
                return View(FromCaller(place), tuple(steps)) if steps else FromCaller(place)
        of = FromGraph(self._base(chain[-1], descriptor, whole=len(chain) == 1))
        steps = self._steps(chain[:-1])
        root = chain[-1].tensor
        if len(chain) == 1 and root is not None and root.requires_grad and root.is_leaf:
            steps.append(RequireGrad())
        return View(of, tuple(steps)) if steps else of

    def _input_place(self, alias: Alias) -> int | None:
        if alias.tensor is None:
            return None
        place = self.inputs.index.get(id(alias.tensor))
        return place if place is not None and self.inputs.aliases[place] is alias else None

    def _base(self, root: Alias, descriptor: Result | None, whole: bool) -> int:
        """The output with the value of `root`, which results are views of or are themselves."""
        if root not in self._bases:
            node = aliasing.read(self.tracer.emitter, root)
            # A tensor that `t_` or `as_strided_` moved since lies otherwise than its value here.
            if root.tensor is not None and self.tracer.alias(root.tensor) is root:
                node = self._laid_out(node, root.tensor)
            own = descriptor if whole else None
            self._bases[root] = self._output(node, own)
        index = self._bases[root]
        if whole and descriptor is not None and self.descriptors[index] is None:
            self.descriptors[index] = descriptor
        if descriptor is not None:
            self._base_results.setdefault(index, []).append(descriptor)
        return index

    def _laid_out(self, node: fx.Node, tensor: torch.Tensor) -> fx.Node:
        """`node`, lying in memory as the program's tensor does."""
        if geometry.same_layout(node.meta["val"], tensor):
            return node
        emitter = self.tracer.emitter
        options = {"dtype": tensor.dtype, "device": tensor.device}
        place = (list(tensor.shape), list(tensor.stride()))
        mode = mode_of(node)
        empty = emitter.call(aten.empty_strided.default, place, options, mode=mode)
        return emitter.call(aten.copy.default, (empty, node), mode=mode)

    def _steps(self, chain: Sequence[Alias]) -> list[Step]:
        """The view ops that lead to the first of `chain`."""
        steps: list[Step] = []
        for alias in reversed(chain):
            assert alias.step is not None
            steps.append(self._replay(alias.step))
            if alias.starts_family and alias.has_history and alias.tensor is not None:
                if alias.tensor.is_leaf:
                    steps.append(RequireGrad())
                else:
                    node = aliasing.read(self.tracer.emitter, alias)
                    steps.append(Refill(self._view_argument(node)))
        return steps

    def _replay(self, step: ViewStep) -> Replay:
        args, kwargs = trees.map_leaves(self._number, (step.args, step.kwargs))
        return Replay(step.op, tuple(args), tuple(kwargs.items()), step.output, step.mode)

    def _number(self, leaf: Any) -> Any:
        return FromGraph(self._view_argument(leaf)) if isinstance(leaf, fx.Node) else leaf

    def _view_argument(self, node: fx.Node) -> int:
        if node not in self._numbers:
            self._numbers[node] = self._output(node, ViewArgument(len(self._numbers)))
        return self._numbers[node]
