"""How an exported program is called and what it assumes, as records: one for each kind of sizes.

The program is captured for the sizes of the example.  If it, or a derivative of it, branches on a
size that is to vary, the bounds of that size, 0 and 1 are tried as well, and the program is
captured again for each of them that takes another branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import sympy
import torch

from adjoint.capture.direct import module_of, state_of
from adjoint.errors import ExportError
from adjoint.exported.loading import CLOSURE, STATE
from adjoint.exported.records import (
    ConstantRecord,
    ProgramRecord,
    SizeRecord,
    TensorRecord,
)
from adjoint.exporting.asking import ANY, Asked
from adjoint.exporting.graphs import Exporting
from adjoint.graph.calling import BaseOf, FromCaller
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.metadata import value_or_none
from adjoint.runtime.sharing import Sharing, sharing
from adjoint.target import CPU
from adjoint.torch_private import trees
from adjoint.torch_private.size_evaluation import first_violated

# Records of one program, each for sizes that take other branches.
MAX_VERSIONS = 4

# The size of an axis of an input.
Place = tuple[int, int]


class Recording:
    """Captures a function for several kinds of sizes, and compiles it with its derivatives."""

    def __init__(self, function: Callable[..., object], exporting: Exporting, orders: int) -> None:
        self.function = function
        self.exporting = exporting
        self.orders = orders
        self.tensors: dict[str, torch.Tensor] = {}
        """Parameters, buffers and the closure, by their names in the file."""
        self._closure: dict[int, int] = {}

    def versions(self, asked: Asked) -> tuple[ProgramRecord, ...]:
        """The program for the sizes of the example, and for others that take other branches."""
        first = self._record(asked, is_first=True)
        found = [first]
        for sizes in _others(first, asked):
            if len(found) == MAX_VERSIONS:
                break
            if any(_holds(each, sizes) for each in found):
                continue
            plans = len(self.exporting.plans)
            try:
                found.append(self._record(_resized(asked, first, sizes), is_first=False))
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - it is not for such sizes: a call is refused
                del self.exporting.plans[plans:]
        for sizes, what in _bounds(first, asked):
            if not any(_holds(each, sizes) for each in found):
                raise ExportError(f"{what}, and the program assumes {_assumed(first, sizes)}")
        return tuple(found)

    def _record(self, asked: Asked, is_first: bool) -> ProgramRecord:
        exporting, function = self.exporting, self.function
        compiler = exporting.compiler
        exporting.assumed.clear()
        with torch.enable_grad():
            captured = compiler.captured_call(function, asked.args, asked.kwargs, asked.axes)
        _require_on(captured, exporting.target.device)
        assert captured.guards is not None
        leaves = [each for each in asked.leaves if isinstance(each, torch.Tensor)]
        inputs = captured.leaves(leaves)
        places = _differentiable(function, captured, asked, inputs)
        wrt = _graph_places(captured, places)
        graph = exporting.graph(captured.graph_module, wrt, self.orders)
        captured.guards.close()
        conditions = tuple(dict.fromkeys([*captured.guards.conditions, *exporting.assumed]))
        sizes = _sizes(captured, asked, inputs)
        if is_first:
            for each in sizes:
                _require_to_vary(each, asked.name_of(inputs[each.input]), conditions)
        names = [*state_names(function, captured), *self._keep(captured)]
        records = _records(captured, asked, inputs, names)
        first, last = len(captured.bound), len(captured.bound) + len(leaves)
        given = iter(records[first:last])
        signature = captured.signature
        assert signature is not None
        return ProgramRecord(
            self.orders,
            asked.positional,
            trees.unflatten([*range(len(asked.leaves))], signature.in_spec),
            tuple(
                next(given) if isinstance(leaf, torch.Tensor) else ConstantRecord(path, leaf)
                for path, leaf in zip(asked.paths, asked.leaves, strict=True)
            ),
            trees.unflatten([*range(len(captured.calling.results))], signature.out_spec),
            tuple(records[:first]),
            tuple(records[last:]),
            tuple(places),
            sizes,
            conditions,
            captured.calling,
            _sharing(captured, inputs),
            graph,
        )

    def _keep(self, captured: CapturedProgram) -> list[str]:
        """Keep the tensors of a capture; the names of those of the closure."""
        for name, tensor in zip(state_names(self.function, captured), captured.bound, strict=True):
            self.tensors[f"{STATE}.{name}"] = tensor
        names: list[str] = []
        for tensor in captured.closed_over:
            number = self._closure.setdefault(id(tensor), len(self._closure))
            names.append(f"tensor {number} of the closure")
            self.tensors[f"{CLOSURE}.{names[-1]}"] = tensor
        return names


def _classes(record: ProgramRecord) -> list[list[SizeRecord]]:
    """The sizes that vary, in groups: the sizes of a group have to be equal."""
    groups: dict[sympy.Symbol, list[SizeRecord]] = {}
    for each in record.sizes:
        groups.setdefault(each.symbol, []).append(each)
    for condition in record.conditions:
        if isinstance(condition, sympy.Eq) and all(side in groups for side in condition.args):
            one, other = (groups[side] for side in condition.args)
            if one is not other:
                one += other
                groups.update({each.symbol: one for each in other})
    return list({id(group): group for group in groups.values()}.values())


def _example(record: ProgramRecord, asked: Asked) -> dict[Place, int]:
    """The sizes of the example that vary."""
    leaves = [each for each in asked.leaves if isinstance(each, torch.Tensor)]
    first = len(record.state)
    return {
        (each.input, each.axis): leaves[each.input - first].shape[each.axis]
        for each in record.sizes
    }


def _bounds(record: ProgramRecord, asked: Asked) -> Iterator[tuple[dict[Place, int], str]]:
    """Sizes with one bound that was asked for, and what was asked in words."""
    example = _example(record, asked)
    leaves = [each for each in asked.leaves if isinstance(each, torch.Tensor)]
    for group in _classes(record):
        for member in group:
            if (member.least, member.most) == ANY:
                continue
            name = asked.name_of(leaves[member.input - len(record.state)])
            what = f"{name}.shape[{member.axis}] is to vary within {member.least, member.most}"
            for bound in (member.least, member.most):
                if bound is not None:
                    yield {**example, **{(m.input, m.axis): bound for m in group}}, what


def _others(record: ProgramRecord, asked: Asked) -> Iterator[dict[Place, int]]:
    """Sizes to try: each bound; and 1 and 0 for any set of sizes whose bounds allow them."""
    for sizes, _ in _bounds(record, asked):
        yield sizes
    classes, example = _classes(record), _example(record, asked)
    for count in range(1, len(classes) + 1):
        for chosen in itertools.combinations(classes, count):
            for size in (1, 0):
                members = [each for group in chosen for each in group]
                if all(m.least <= size and (m.most is None or size <= m.most) for m in members):
                    yield {**example, **{(each.input, each.axis): size for each in members}}


def _holds(record: ProgramRecord, sizes: dict[Place, int]) -> bool:
    return _assumed(record, sizes) is None


def _assumed(record: ProgramRecord, sizes: dict[Place, int]) -> str | None:
    """A condition that does not hold for `sizes`."""
    own = {each.symbol: sizes[each.input, each.axis] for each in record.sizes}
    return first_violated(record.conditions, own)


def _resized(asked: Asked, record: ProgramRecord, sizes: dict[Place, int]) -> Asked:
    """The same arguments of other sizes; what they hold does not matter to a capture."""
    tensors = [place for place, each in enumerate(asked.leaves) if isinstance(each, torch.Tensor)]
    shapes = {place: list(asked.leaves[place].shape) for place in tensors}
    for (place, axis), size in sizes.items():
        shapes[tensors[place - len(record.state)]][axis] = size
    made: dict[int, torch.Tensor] = {}
    for place in tensors:
        leaf = asked.leaves[place]
        if id(leaf) not in made:
            new = torch.zeros(shapes[place], dtype=leaf.dtype, device=leaf.device)
            made[id(leaf)] = new.requires_grad_(leaf.requires_grad)
    return asked.with_leaves([made.get(id(each), each) for each in asked.leaves], made)


def _require_on(captured: CapturedProgram, device: torch.device) -> None:
    for node in captured.graph_module.graph.nodes:
        for leaf in trees.leaves(value_or_none(node)):
            if isinstance(leaf, torch.Tensor) and leaf.device not in (CPU, device):
                raise ExportError(
                    f"the program is exported for {device}, and a tensor is on {leaf.device}: move "
                    f"the module and its arguments with .to({str(device)!r})"
                )


def state_names(function: Callable[..., object], captured: CapturedProgram) -> list[str]:
    """The names of the module's parameters and buffers, in the order of the inputs."""
    names: dict[int, str] = {}
    for name, tensor in state_of(module_of(function)).items():
        names.setdefault(id(tensor), name)
    return [names[id(tensor)] for tensor in captured.bound]


def _differentiable(
    function: Callable[..., object],
    captured: CapturedProgram,
    asked: Asked,
    inputs: Sequence[torch.Tensor],
) -> list[int]:
    """Positions of the inputs that the program can be differentiated with respect to."""
    first = len(captured.bound)
    state = state_names(function, captured)
    tensors = [n for n, each in enumerate(asked.leaves) if isinstance(each, torch.Tensor)]
    places = {n: first + place for place, n in enumerate(tensors)}
    found: list[int] = [places[n] for n in asked.wrt]
    for name in asked.wrt_state:
        if name not in state:
            known = [*asked.names, *state]
            raise ExportError(f"wrt names {name!r}; choose from: {', '.join(known)}")
        found.append(state.index(name))
    for place in found:
        if not (inputs[place].is_floating_point() or inputs[place].is_complex()):
            raise ExportError(
                f"wrt has a tensor of {inputs[place].dtype}, and only floating-point and complex "
                "tensors have derivatives"
            )
    return sorted(set(found))


def _graph_places(captured: CapturedProgram, places: Sequence[int]) -> list[int]:
    """Positions among the inputs of the graph."""
    return [
        place
        for place, source in enumerate(captured.calling.sources)
        if isinstance(source, FromCaller | BaseOf) and source.index in places
    ]


def _records(
    captured: CapturedProgram, asked: Asked, inputs: Sequence[torch.Tensor], names: Sequence[str]
) -> list[TensorRecord]:
    assert captured.guards is not None
    layouts = captured.guards.layouts()
    arguments = [
        path
        for path, leaf in zip(asked.paths, asked.leaves, strict=True)
        if isinstance(leaf, torch.Tensor)
    ]
    first = len(captured.bound)
    paths = [*names[:first], *arguments, *names[first:]]
    records: list[TensorRecord] = []
    for place, (path, tensor) in enumerate(zip(paths, inputs, strict=True)):
        numbers, axes = layouts[place], tensor.dim()
        shape, strides = numbers[:axes], numbers[axes:]
        records.append(TensorRecord(path, tensor.dtype, shape, strides, str(tensor.device)))
    return records


def _sizes(
    captured: CapturedProgram, asked: Asked, inputs: Sequence[torch.Tensor]
) -> tuple[SizeRecord, ...]:
    assert captured.guards is not None
    found: list[SizeRecord] = []
    for symbol, place, axis in captured.guards.sizes:
        assert axis is not None, f"{symbol} is a number, and numbers are constants of an export"
        least, most = asked.bounds_of(inputs[place], axis)
        found.append(SizeRecord(symbol, place, axis, least, most))
    return tuple(found)


def _require_to_vary(size: SizeRecord, name: str, conditions: Sequence[sympy.Basic]) -> None:
    """Raise `ExportError` if the program is for one size alone."""
    symbol, axis = size.symbol, size.axis
    about = [each for each in conditions if each.free_symbols == {symbol}]
    for each in about:
        if isinstance(each, sympy.Eq) and any(side.is_Integer for side in each.args):
            raise ExportError(
                f"{name}.shape[{axis}] is to vary, and the program fixes it: {each}, where {symbol}"
                " is that size; len(x), int(x.shape[0]) and the like make numbers of sizes: use "
                "x.shape[0] as it is"
            )


def _sharing(captured: CapturedProgram, inputs: Sequence[torch.Tensor]) -> Sharing:
    calling = captured.calling
    written_to = tuple(write.to.index for write in calling.writes)
    placed = tuple(place.index for place in calling.placements)
    return sharing(inputs, written_to, placed)
