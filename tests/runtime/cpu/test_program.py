from __future__ import annotations

import gc
import threading
import weakref
from unittest import mock

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import adjoint
from adjoint.compiler import Compiler
from adjoint.runtime.cpu.program import MAX_FREE_BINDINGS, CpuProgram
from tests.lowering import check, program_of

X = torch.arange(12.0).reshape(3, 4)


def rand(*shape: int, generator: torch.Generator | None = None) -> torch.Tensor:
    """In float64: kernels and eager add up in different orders."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    z = (x + 1) @ (y * 2)
    return [z.exp(), (z - z.amax(1, keepdim=True)).sum(0)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: (rand(4, 3).t(), rand(5, 4).t()),
        lambda: (rand(3, 8)[:, ::2], rand(4, 10)[:, 3:8]),
        lambda: (rand(3, 1).expand(3, 4), rand(5).expand(4, 5)),
    ],
)
def test_inputs_laid_out_otherwise(make: object) -> None:
    program = program_of(function, [rand(3, 4), rand(4, 5)])
    x, y = make()  # type: ignore[operator]
    for ours, eager in zip(program([x, y]), function(x, y), strict=True):
        torch.testing.assert_close(ours, eager)


def test_an_input_that_was_expanded_need_not_be_again() -> None:
    program = program_of(lambda x: x * 2, [torch.ones(1).expand(3, 4)])
    assert torch.equal(program([X]), X * 2)
    assert torch.equal(program([X[:, :1].expand(3, 4)]), X[:, :1].expand(3, 4) * 2)


def test_inputs_whose_data_are_not_what_they_say() -> None:
    program = program_of(lambda x: x * 2 + 1, [X])
    negated = torch.complex(X, X).conj().imag
    assert negated.is_neg()
    assert torch.equal(program([negated]), 1 - 2 * X)
    # Autograd gives such zeros for a gradient that is missing inside of a complex one.
    zeros = torch._efficientzerotensor(X.shape, dtype=X.dtype)
    assert torch.equal(program([zeros]), torch.ones_like(X))


def test_offsets_count_from_the_start_of_what_the_program_made() -> None:
    check(
        lambda x, y: torch.as_strided_copy(x.exp() @ y, (2, 2), (2, 1), 1) * 2,
        rand(3, 40),
        rand(40, 5),
    )


def test_parts_of_what_the_program_made() -> None:
    def parts(x: torch.Tensor) -> torch.Tensor:
        one, other = (x + 1).split(2, 1)
        product: torch.Tensor = one.t() @ other
        return product

    check(parts, rand(3, 4))


def test_inputs_are_taken_out_of_the_list() -> None:
    program = program_of(lambda x: (x + 1).sort(1).values.exp(), [X])
    inputs = [X.clone()]
    kept = weakref.ref(inputs[0])
    program(inputs)
    assert inputs == []
    gc.collect()
    assert kept() is None


def test_inputs_are_not_changed() -> None:
    x, y = rand(3, 4), rand(4, 5)
    before = x.clone(), y.clone()
    program_of(function, [x, y])([x, y])
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


def test_results_are_their_own() -> None:
    """A later call does not write into what an earlier one returned."""
    program = check(function, rand(3, 4), rand(4, 5))
    x, y = rand(3, 4), rand(4, 5)
    first = program([x, y])
    kept = [tensor.clone() for tensor in first]
    program([rand(3, 4), rand(4, 5)])
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    assert len({tensor.untyped_storage().data_ptr() for tensor in first}) == 2


def test_an_exception_in_the_middle_leaves_the_next_call_right() -> None:
    def lookup(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return (x + 1)[i].exp() * 2

    good, bad = torch.tensor([2, 0]), torch.tensor([7, 0])
    program = program_of(lookup, [X, good])
    for _ in range(3):
        with pytest.raises(IndexError, match="index 7 is out of bounds"):
            program([X, bad])
        torch.testing.assert_close(program([X, good]), lookup(X, good))
    assert len(program._bindings) == 1


@pytest.mark.parametrize("allocation", ["torch.empty", "adjoint.runtime.cpu.memory.empty_strided"])
def test_memory_that_is_not_there_leaves_the_next_call_right(allocation: str) -> None:
    """Of what lives inside, when a binding is made; and of a result, in each call."""
    x, y = rand(120, 4), rand(4, 120)
    program = program_of(function, [x, y])
    before = x.clone(), y.clone()
    full = mock.patch(allocation, side_effect=RuntimeError("can't allocate memory"))
    with full, pytest.raises(RuntimeError, match="can't allocate memory"):
        program([x, y])
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    for ours, eager in zip(program([x, y]), function(x, y), strict=True):
        torch.testing.assert_close(ours, eager)


def test_two_threads_at_once() -> None:
    program = program_of(function, [rand(3, 4), rand(4, 5)])
    wrong: list[int] = []

    def work(seed: int) -> None:
        torch.set_num_threads(1)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            x, y = rand(3, 4, generator=generator), rand(4, 5, generator=generator)
            for ours, eager in zip(program([x, y]), function(x, y), strict=True):
                if not torch.allclose(ours, eager):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 1 <= len(program._bindings) <= MAX_FREE_BINDINGS


def test_a_program_called_while_it_runs() -> None:
    """A call inside of another has memory of its own."""
    program = program_of(function, [rand(3, 4), rand(4, 5)])
    x, y = rand(3, 4), rand(4, 5)
    expected = function(x, y)
    native = program._run
    depth = 0

    def run(inputs: list[torch.Tensor], binding: object, threads: int) -> object:
        nonlocal depth
        depth += 1
        if depth < 3:
            other = [rand(3, 4), rand(4, 5)]
            program(other)
        return native(inputs, binding, threads)

    program._run = run
    for ours, eager in zip(program([x, y]), expected, strict=True):
        torch.testing.assert_close(ours, eager)
    assert depth == 3


def test_one_binding_is_for_any_number_of_threads() -> None:
    program = program_of(function, [rand(3, 4), rand(4, 5)])
    before = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 1):
            torch.set_num_threads(count)
            program([rand(3, 4), rand(4, 5)])
    finally:
        torch.set_num_threads(before)
    assert len(program._bindings) == 1


def test_memory_lives_as_long_as_a_view_of_a_view_of_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).t().t()
        z = (x * 3).sort(1).values.exp()
        return y @ (z @ (z + 1)).sqrt()

    check(function, rand(4, 4))


def test_what_is_dead_inside_shares_memory() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = (x @ x) * 0.1 + 1
        return x

    x = rand(64, 64)
    program = check(chain, x)
    (binding,) = program._bindings
    assert binding.arena.numel() < 5 * x.nbytes


def test_memory_that_an_op_was_given_is_not_taken_for_that_of_its_result() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        v = x + 0.5 * x * x
        v.conj_physical_()
        return v, v.prod(-1)

    check(function, rand(3))


def test_a_program_with_checkpoints_gives_its_memory_back() -> None:
    def marked(x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(lambda x: torch.linalg.qr(x.sin())[0], x, use_reentrant=False)
        return torch.exp(torch.linalg.qr(y.cos())[0])

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.linalg.qr(x.sin())[0])

    x = rand(256, 256)
    for function, gives_back in ((marked, True), (plain, False)):
        graph_module = adjoint.capture(function, x).graph_module
        program = Compiler().native(graph_module)
        assert isinstance(program, CpuProgram)
        assert program.plan.gives_back == gives_back
        results = [program([x])[0] for _ in range(2)]
        (binding,) = program._bindings
        assert (binding.arena.numel() == 0) == gives_back
        assert any(pool._buffers for pool in binding.pools.values()) != gives_back
        torch.testing.assert_close(results, [function(x)] * 2)
