"""Does a compiled program do all that eager does: not only its values, but all a caller can see.

`check(function, make_inputs)` calls the function once in eager and once compiled, on inputs made
alike, and compares what each call returned and what it left behind.
"""

from __future__ import annotations

import contextlib
import copy
import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch.utils import _pytree

import adjoint
import adjoint.backend as backend
from adjoint.errors import CaptureError
from adjoint.torch_private.modes import is_traceable_wrapper_subclass

# How far a result may be from eager's: the same ops run, but a sum may be split otherwise.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.complex128: 1e-12,
    torch.float32: 1e-6,
    torch.complex64: 1e-6,
    torch.bfloat16: 1e-2,
    torch.float16: 1e-3,
}


class Route(enum.Enum):
    """How a function is compiled."""

    DIRECT = "direct"
    DYNAMO = "dynamo"


ROUTES = list(Route)


@dataclass
class Outcome:
    """What one call did."""

    labels: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    structure: Any = None
    random_state: torch.Tensor | None = None
    gradients: list[torch.Tensor | None] | None = None
    """None where eager's own gradients are undefined: a saved tensor was written to."""


@dataclass(frozen=True)
class Row:
    """One program of a table, the inputs it is checked with, and how."""

    function: Callable[..., Any]
    inputs: Callable[[], Any]
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.function.__name__

    def check(self, route: Route) -> None:
        """By this route the program does what it does in eager.

        `dynamo=False`: Dynamo breaks the graph there, or refuses.
        """
        options = dict(self.options)
        if options.pop("dynamo", True) or route is not Route.DYNAMO:
            check(self.function, self.inputs, route, **options)


class Table(list[Row]):
    """Programs that are checked in one way: `@table(inputs)` over a function adds it."""

    def __call__(self, inputs: Callable[[], Any], **options: Any) -> Callable[[Any], Any]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self.append(Row(function, inputs, options))
            return function

        return add


class Inputs:
    """The arguments of one call, and what they were before it."""

    def __init__(self, function: Callable[..., Any], make: Callable[[], Any], seed: int) -> None:
        torch.manual_seed(seed)
        self.function = copy.deepcopy(function) if _is_module(function) else function
        made = make()
        self.args: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
        self.seen = _with_bases(_labelled("input", (_state(self.function), self.args)))
        self.versions = [_version(tensor) for _, tensor in self.seen]
        self.leaves = _leaves_behind([tensor for _, tensor in self.seen])
        self.before = outcome(self, None)

    def assert_untouched(self) -> None:
        """All is as it was when the inputs were made."""
        compare(self.before, outcome(self, None))


def check(
    function: Callable[..., Any],
    make_inputs: Callable[[], Any],
    route: Route = Route.DIRECT,
    *,
    order: int = 1,
    seed: int = 0,
    compiles: bool = True,
    raises: type[Exception] | None = None,
) -> None:
    """Compiled by `route`, `function` does what it does in eager.

    `make_inputs` is called once for each side.  Gradients are compared to `order`.  Where eager
    raises (it must, with `raises`), so must the compiled function, and leave its inputs alone.
    `compiles=False`: Dynamo has nothing to compile.
    """
    eager, compiled = (Inputs(function, make_inputs, seed) for _ in range(2))
    try:
        expected = call(eager, lambda: eager.function(*eager.args), order, Saved())
    except Exception as error:
        if raises is not None and not isinstance(error, raises):
            raise
        rejected(compiled, route, type(error))
        return
    assert raises is None, "eager was to raise"
    with through(compiled, route, compiles) as run:
        actual = call(compiled, run, order if expected.gradients is not None else 0)
    compare(expected, actual)


def rejected(inputs: Inputs, route: Route, error: type[Exception]) -> None:
    """The compiled function raises, and its inputs are as they were."""
    # Fake tensors are not always of eager's opinion which error it is.
    of_fakes = (RuntimeError, IndexError, ValueError, TypeError)
    allowed = (error, CaptureError, torch._dynamo.exc.TorchDynamoException, *of_fakes)
    try:
        with through(inputs, route, compiles=False) as run:
            run()
    except allowed:
        inputs.assert_untouched()
        return
    raise AssertionError(f"eager raises {error.__name__}, the compiled function does not")


def refused(
    function: Callable[..., Any],
    make_inputs: Callable[[], Any],
    route: Route = Route.DIRECT,
    seed: int = 0,
) -> CaptureError:
    """The error with which capture refuses `function`; eager takes it, and inputs are untouched.

    It names a line of the test, and a way out.
    """
    eager, compiled = (Inputs(function, make_inputs, seed) for _ in range(2))
    eager.function(*eager.args)
    try:
        with through(compiled, route, compiles=False) as run:
            run()
    except CaptureError as error:
        found: BaseException = error
    except torch._dynamo.exc.BackendCompilerFailed as error:
        found = error.inner_exception
    else:
        raise AssertionError("nothing was refused")
    compiled.assert_untouched()
    assert isinstance(found, CaptureError)
    assert found.source is not None
    assert found.source.file != __file__
    assert found.source.file.startswith(str(Path(__file__).parent))
    assert found.remedy
    return found


@contextlib.contextmanager
def through(inputs: Inputs, route: Route, compiles: bool) -> Iterator[Callable[[], Any]]:
    """How to call the function compiled; that it really was compiled is asserted in the end."""
    function, args = inputs.function, inputs.args
    if route is Route.DIRECT:

        def run_captured() -> Any:
            captured = adjoint.capture(function, *args)
            inputs.assert_untouched()
            return adjoint.run(captured, *args)

        yield run_captured
        return
    calls = 0

    def counting(*arguments: Any, **options: Any) -> Callable[..., Any]:
        program = original(*arguments, **options)

        def counted(*given: Any) -> Any:
            nonlocal calls
            result = program(*given)
            calls += 1
            return result

        return counted

    original = backend.compile_graph
    torch._dynamo.reset()
    with (
        mock.patch.object(backend, "compile_graph", counting),
        torch._dynamo.config.patch(suppress_errors=False),
    ):
        yield lambda: torch.compile(function, backend="adjoint", fullgraph=True)(*args)
    assert not compiles or calls == 1, f"{calls} compiled graphs ran"


# One call -----------------------------------------------------------------------------------------


def call(inputs: Inputs, run: Callable[[], Any], order: int, watch: Saved | None = None) -> Outcome:
    """Call, and see what came of it; with `watch`, whether autograd can be relied on as well."""
    torch.manual_seed(1)
    with contextlib.ExitStack() as stack:
        if watch is not None:
            hooks = torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack)
            stack.enter_context(hooks)
        result = run()
    seen = outcome(inputs, result)
    seen.random_state = torch.get_rng_state()
    if watch is None:
        seen.gradients = _gradients(inputs, seen, order)
        return seen
    with contextlib.suppress(RuntimeError):  # A derivative that eager does not have.
        found = _gradients(inputs, seen, order)
        seen.gradients = None if watch.overwritten else found
    return seen


def outcome(inputs: Inputs, result: Any) -> Outcome:
    """The inputs and `result` as they are now."""
    seen = Outcome()
    leaves, seen.structure = _pytree.tree_flatten(result)
    seen.structure = (
        seen.structure,
        [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves],
    )
    found = _with_bases([*inputs.seen, *_labelled("result", result)])
    versions = {id(t): v for (_, t), v in zip(inputs.seen, inputs.versions, strict=True)}
    identities: dict[int, int] = {}
    memories: dict[Any, int] = {}
    for label, tensor in found:
        number = identities.setdefault(id(tensor), len(identities))
        base = tensor._base
        advanced = _version(tensor) - versions[id(tensor)] if id(tensor) in versions else None
        facts: dict[str, Any] = {
            "identity": number,
            "base": None if base is None else identities.setdefault(id(base), len(identities)),
            "type": type(tensor),
            "dtype": tensor.dtype,
            "shape": tuple(tensor.shape),
            "layout": tensor.layout,
            "requires_grad": if_allowed(tensor, "requires_grad"),
            "is_leaf": if_allowed(tensor, "is_leaf"),
            "is_view": tensor._is_view(),
            "is_inference": tensor.is_inference(),
            "is_conj": tensor.is_conj(),
            "is_neg": tensor.is_neg(),
            "version advanced by": advanced,
        }
        if tensor.layout is torch.strided:
            memory = tensor.untyped_storage()._cdata
            facts["memory"] = memories.setdefault(memory, len(memories))
            # How far it is to the next element of an axis that has but one, no one can see.
            axes = zip(tensor.shape, tensor.stride(), strict=True)
            facts["stride"] = [step if size > 1 else None for size, step in axes]
            facts["offset"] = tensor.storage_offset()
        seen.labels.append(label)
        seen.tensors.append(tensor)
        seen.values.append(tensor.detach().clone())
        seen.facts.append(facts)
    return seen


class Saved:
    """Watches what autograd saves, to know if it was written to before it was used."""

    def __init__(self) -> None:
        self.overwritten = False

    def pack(self, tensor: torch.Tensor) -> Any:
        return tensor, _version(tensor), tensor.detach().clone()

    def unpack(self, packed: Any) -> torch.Tensor:
        tensor, version, copied = packed
        same = torch.equal(_bits(tensor.detach()), _bits(copied))
        self.overwritten |= version != _version(tensor) or not same
        return tensor  # type: ignore[no-any-return]


def _gradients(inputs: Inputs, seen: Outcome, order: int) -> list[torch.Tensor | None]:
    unique = {id(tensor): tensor for tensor in seen.tensors}.values()
    heads = [t for t in unique if if_allowed(t, "requires_grad") is True]
    heads = [t for t in heads if not t.is_inference() and if_allowed(t, "is_leaf") != "refused"]
    leaves = {id(t): t for t in [*inputs.leaves, *(t for t in heads if t.is_leaf)]}
    found: list[torch.Tensor | None] = []
    generator = torch.Generator().manual_seed(2)
    for each in range(order):
        with torch.enable_grad():
            projections = [projection(head, generator) for head in heads]
        projections = [each for each in projections if each.requires_grad]
        if not projections:
            found += [None] * len(leaves)
            break
        gradients = torch.autograd.grad(
            projections, list(leaves.values()), create_graph=each + 1 < order, allow_unused=True
        )
        found_now: list[torch.Tensor | None] = list(gradients)
        found += found_now
        # One that eager does not have is zero; either way it has a direction of its own.
        pairs = zip(leaves.values(), found_now, strict=True)
        heads = [torch.zeros_like(leaf) if g is None else g for leaf, g in pairs]
    return found


def projection(head: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if is_traceable_wrapper_subclass(head):
        return head.sin().sum()  # A subclass need not take a plain tensor beside it.
    head = head.to_dense() if head.layout is not torch.strided else head
    direction = torch.randn(head.shape, dtype=torch.float64, generator=generator)
    projected = head.to(torch.complex128 if head.is_complex() else torch.float64) * direction
    if projected.is_complex():
        projected = projected.real + 0.5 * projected.imag
    return projected.sum()


# Comparing ----------------------------------------------------------------------------------------


def compare(expected: Outcome, actual: Outcome) -> None:
    """The two calls cannot be told apart."""
    assert actual.structure == expected.structure, (actual.structure, expected.structure)
    assert actual.labels == expected.labels, (actual.labels, expected.labels)
    for label, mine, theirs in zip(expected.labels, actual.facts, expected.facts, strict=True):
        wrong = {key: (mine[key], theirs[key]) for key in theirs if mine[key] != theirs[key]}
        assert not wrong, f"{label} (compiled, eager): {wrong}"
    values = zip(expected.labels, actual.values, expected.values, strict=True)
    for label, my_value, their_value in values:
        _assert_close(my_value, their_value, label)
    if expected.random_state is not None and actual.random_state is not None:
        assert torch.equal(actual.random_state, expected.random_state), "random state"
    if expected.gradients is not None and actual.gradients is not None:
        pairs = zip(actual.gradients, expected.gradients, strict=True)
        for index, (my_grad, their_grad) in enumerate(pairs):
            my_grad, their_grad = _zeros_for(my_grad, their_grad), _zeros_for(their_grad, my_grad)
            _assert_close(my_grad, their_grad, f"gradient {index}")


def _zeros_for(gradient: Any, other: Any) -> Any:
    """No gradient is a gradient of zero."""
    return torch.zeros_like(other) if gradient is None and other is not None else gradient


def _assert_close(mine: Any, theirs: Any, label: str) -> None:
    if theirs is None:
        assert mine is None, label
        return
    if is_traceable_wrapper_subclass(theirs):
        assert type(mine) is type(theirs), label
        names, context = theirs.__tensor_flatten__()
        assert mine.__tensor_flatten__() == (names, context), label
        for name in names:
            _assert_close(getattr(mine, name), getattr(theirs, name), f"{label}.{name}")
        return
    if not isinstance(theirs, torch.Tensor):
        assert mine == theirs, label
        return
    tolerance = TOLERANCE.get(theirs.dtype, 0.0)
    mine, theirs = mine.detach(), theirs.detach()
    torch.testing.assert_close(
        mine,
        theirs,
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
        msg=lambda text: f"{label}: {text}",
    )


# Tensors ------------------------------------------------------------------------------------------


def _is_module(function: Any) -> bool:
    return isinstance(function, torch.nn.Module)


def _state(function: Any) -> list[torch.Tensor]:
    return [*function.parameters(), *function.buffers()] if _is_module(function) else []


def _labelled(label: str, tree: Any) -> list[tuple[str, torch.Tensor]]:
    keyed, _ = _pytree.tree_flatten_with_path(tree)
    return [
        (f"{label}{_pytree.keystr(path)}", leaf)
        for path, leaf in keyed
        if isinstance(leaf, torch.Tensor)
    ]


def _with_bases(
    labelled: Sequence[tuple[str, torch.Tensor]],
) -> list[tuple[str, torch.Tensor]]:
    bases = [(f"base of {label}", t._base) for label, t in labelled if t._base is not None]
    return [*labelled, *bases]


def if_allowed(tensor: torch.Tensor, fact: str) -> Any:
    """Autograd raises when it is asked about a view that it refuses to derive anew."""
    try:
        return getattr(tensor, fact)
    except RuntimeError:
        return "refused"


def _leaves_behind(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that require grad which `tensors` are or were computed from."""
    found: dict[int, torch.Tensor] = {}
    visited: set[Any] = set()

    def visit(node: Any) -> None:
        if node is None or node in visited:
            return
        visited.add(node)
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        for following, _ in node.next_functions:
            visit(following)

    for tensor in tensors:
        if tensor.is_leaf and tensor.requires_grad:
            found[id(tensor)] = tensor
        visit(tensor.grad_fn)
    return list(found.values())


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """For a comparison in which NaN equals NaN."""
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        return tensor
    return tensor.nan_to_num(12345.0)


# Inputs to choose from ----------------------------------------------------------------------------


def plain(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A tensor that does not require grad."""
    return torch.randn(shape, dtype=dtype)


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A leaf that requires grad."""
    return plain(*shape, dtype=dtype).requires_grad_()


def grown(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A tensor with a history, which in-place ops may write to."""
    return leaf(*shape, dtype=dtype) * 1
