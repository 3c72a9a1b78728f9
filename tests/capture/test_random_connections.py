"""Random programs of views and recorded writes: gradients between all that a caller holds.

Each result, and each input that was written to, is differentiated with respect to every leaf, every
input that has a history and every other result, alone and several together, twice.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.errors import CaptureError
from adjoint.options import Options
from tests.capture import test_random_programs as programs
from tests.differentiation import NATIVELY, OP_BY_OP, bridged
from tests.parity import Inputs, Outcome, Saved, compare, if_allowed, outcome, projection

# In addition to those of `test_random_programs`.  Not `as_strided`: eager computes it from the
# tensor, a graph from its memory.
INPUTS = (
    "torch.randn({shape}, dtype=torch.complex128).requires_grad_() * 1",
    "{0}.transpose(0, -1)",
    "{0}.diagonal()",
    "{0}.unfold(0, 2, 1)",
    "{0}.real",
    "torch.view_as_real({0})",
)
VALUES = (
    "{0}.narrow(0, {k}, 1)",
    "{0}.chunk(2, -1)[{k} % 2]",
    "{0}.tensor_split(2)[1]",
    "{0}.split([1, {0}.shape[0] - 1])[1]",
    "{0}.unflatten(0, (1, -1))",
    "{0}.flatten()",
    "{0}.movedim(0, -1)",
    "{0}.mT",
    "{0}.select(-1, {k})",
    "{0}.diagonal(1, -2, -1)",
    "{0}.unbind(0)[{k}]",
    "{0}.real",
    "{0}.imag",
    "{0}.conj()",
    "torch.view_as_real({0})",
    "torch.view_as_complex({0}.view(-1, 2))",
    "{0}.view(torch.float64)",
    "{0}.exp().sum() * {1}",
)
WRITES = (
    "{0}[..., :-1] = {0}[..., 1:]",
    "{0}.diagonal().mul_(2)",
    "{0}.unbind(0)[{k}].mul_({1}.sum())",
    "{0}.real.mul_(2)",
    "{0}.imag.copy_({1}.sum().real)",
    "{0}.neg_()",
    "{0}.index_add_(0, torch.tensor([0, 0]), {0}[:2].clone())",
    "{0}.index_put_((torch.tensor([0]),), {1}.sum())",
    "{0}.masked_fill_({0}.real > 0, 0.5)",
    "{0}.exponential_()",
)
# Only of what the program has made.
METADATA = (
    "{0}.t_()",
    "{0}.transpose_(0, -1)",
    "{0}.unsqueeze_({k})",
    "{0}.squeeze_()",
    "{0}.squeeze_(0)",
    "{0}.swapaxes_(0, -1)",
)


def _is_recorded(template: str) -> bool:
    """Whether autograd sees what it does, and the memory that it shows is that of its tensor."""
    return not any(text in template for text in (".data", "detach", "unrecorded", "as_strided"))


RECORDED = programs.Grammar(
    tuple(filter(_is_recorded, programs.INPUTS)) + INPUTS,
    tuple(filter(_is_recorded, programs.VALUES)) + VALUES,
    tuple(filter(_is_recorded, programs.WRITES)) + WRITES,
    METADATA,
)


def program(seed: int) -> programs.Program:
    """The program of a seed."""
    draw = random.Random(seed)
    writer = programs.Writer(RECORDED)
    writer.input((draw.randrange(3), 0, draw.randrange(6), 0, False))
    for _ in range(draw.randrange(3)):
        numbers = (draw.randrange(400), draw.randrange(8), draw.randrange(8), 0, False)
        writer.input(numbers)
    for _ in range(draw.randint(2, 8)):
        chosen = (draw.randrange(8), draw.randrange(8), draw.randrange(3))
        writer.statement((draw.randrange(4000), *chosen, False))
    writer.returns([draw.randrange(13) for _ in range(draw.randint(1, 4))])
    return writer.program


Gradients = tuple[str, int, Any]


def heads_of(seen: Outcome) -> list[tuple[str, Tensor]]:
    """The tensors that are seen which have a history, each once, with a name."""
    unique = {id(t): (name, t) for name, t in zip(seen.labels, seen.tensors, strict=True)}
    heads = [(n, t) for n, t in unique.values() if if_allowed(t, "requires_grad") is True]
    return [(n, t) for n, t in heads if if_allowed(t, "is_leaf") != "refused"]


def held_by(inputs: Inputs, seen: Outcome) -> list[Tensor]:
    """What gradients are taken with respect to."""
    everything = [*inputs.leaves, *(t for _, t in heads_of(seen))]
    return list({id(t): t for t in everything}.values())


def has_history(gradient: Tensor | None) -> bool:
    return gradient is not None and gradient.requires_grad


def gradients(inputs: Inputs, seen: Outcome, seed: int) -> Iterator[Gradients]:
    """Gradients of each tensor that is seen, and of some together; None where autograd refuses."""
    heads, held = heads_of(seen), held_by(inputs, seen)
    draw = random.Random(seed)
    groups = [[head] for head in heads]
    if len(heads) > 1:
        groups.append(draw.sample(heads, draw.randint(2, len(heads))))
    generator = torch.Generator().manual_seed(seed)
    for group in groups:
        name = " + ".join(name for name, _ in group)
        sums = [projection(t, generator) for _, t in group]
        directions = [torch.randn(t.shape, generator=generator).double() for t in held]
        try:
            first = torch.autograd.grad(sums, held, create_graph=True, allow_unused=True)
        except RuntimeError:
            yield name, 1, None
            continue
        yield name, 1, list(first)
        pairs = zip(first, directions, strict=True)
        parts = [(g * d).sum() for g, d in pairs if has_history(g)]
        parts = [each.real if each.is_complex() else each for each in parts]
        if parts:
            again = torch.autograd.grad(
                torch.stack(parts).sum(), held, retain_graph=True, allow_unused=True
            )
            yield name, 2, list(again)


def difference(mine: list[Gradients], theirs: list[Gradients], views: set[int]) -> str | None:
    """Where two lists of gradients differ, except for those with respect to `views`.

    What is made of an input that is a view, before that is written to, is computed from the base in
    eager, and from the input in a graph: gradients with respect to the input may be more.
    """
    expected = {(name, order): found for name, order, found in theirs if found is not None}
    actual = {(name, order): found for name, order, found in mine}
    for (name, order), wanted in expected.items():
        found = actual.get((name, order))
        if found is None:
            if any(each is not None and bool(each.detach().any()) for each in wanted):
                return f"order {order} of {name}: no gradients"
            continue
        for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
            if place in views:
                continue
            if one is None or other is None:
                rest = one if other is None else other
                is_equal = rest is None or (order == 2 and not bool(rest.detach().any()))
            else:
                is_equal = torch.allclose(one, other, rtol=1e-7, atol=1e-7, equal_nan=True)
            if not is_equal:
                return f"order {order} of {name} to {place}: {one} in place of {other}"
    return None


def connected(made: programs.Program, seed: int, options: Options) -> None:
    """What eager does and its gradients, the compiled program does and has."""
    function, make = made.functions()
    eager, compiled = (Inputs(function, make, 0) for _ in range(2))
    watch = Saved()
    torch.manual_seed(1)
    try:
        with torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack):
            result: Any = function(*eager.args)
    except (RuntimeError, IndexError, TypeError, NameError):
        return
    expected = outcome(eager, result)
    try:
        run = bridged(function, *compiled.args, options=options)
    except CaptureError as error:
        if not any(why in error.why for why in programs.WITHOUT_A_MEANING):
            raise
        compiled.assert_untouched()
        return
    compiled.assert_untouched()
    torch.manual_seed(1)
    actual = outcome(compiled, run(*compiled.args))
    compare(expected, actual)
    theirs = list(gradients(eager, expected, seed))
    if not watch.overwritten:
        held = held_by(eager, expected)
        given = {id(each) for each in eager.args if each._is_view()}
        views = {place for place, each in enumerate(held) if id(each) in given}
        found = difference(list(gradients(compiled, actual, seed)), theirs, views)
        assert found is None, f"{found}\n{made}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(first, first + 50), marks=() if first < 100 else pytest.mark.slow)
        for first in range(0, 2000, 50)
    ],
    ids=lambda seeds: f"from {seeds[0]}",
)
def test_gradients_between_all_that_is_held(seeds: range) -> None:
    for seed in seeds:
        connected(program(seed), seed, NATIVELY if seed % 10 == 0 else OP_BY_OP)


def test_programs_say_something() -> None:
    """Most programs write, and have results with a history."""
    made = [program(seed) for seed in range(40)]
    assert sum("_(" in repr(each) or "] =" in repr(each) for each in made) > 20
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [function(*make()) for function, make in (each.functions() for each in made)]
    assert sum(any(t.requires_grad for t in each) for each in results) > 20
