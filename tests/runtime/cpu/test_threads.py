from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch

from adjoint.runtime.cpu.threads import _single_threaded, openmp
from tests.lowering import program_of


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_library_is_torchs() -> None:
    assert set(openmp()) == {"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"}
    assert all(openmp().values())


def test_a_team_of_one() -> None:
    entries = _single_threaded()
    number = ctypes.CFUNCTYPE(ctypes.c_int)
    assert number(entries["omp_get_thread_num"])() == 0
    assert number(entries["omp_get_num_threads"])() == 1
    seen: list[int] = []
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    body = kind(seen.append)
    address = ctypes.cast(body, ctypes.c_void_p).value
    parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)(
        entries["GOMP_parallel"]
    )
    parallel(address, 7, 4, 0)
    assert seen == [7]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: [x.exp(), x.sum(), x.sum(0), x.sum(1), x.amax(0)],
        lambda x: [x.softmax(1), (x - x.mean(0)).pow(2).sum()],
        lambda x: [x.new_zeros(7, 300).index_add(0, torch.arange(400) % 7, x)],
    ],
)
def test_results_do_not_depend_on_the_number_of_threads(function: object) -> None:
    x = torch.randn(400, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    results = []
    program = program_of(function, [x])  # type: ignore[arg-type]
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(program([x]))
    for result in results:
        for one, other, eager in zip(result, results[0], function(x), strict=True):  # type: ignore[operator]
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(one, eager, rtol=1e-12, atol=1e-12)


def test_the_same_number_of_threads_gives_the_same_bits() -> None:
    torch.set_num_threads(2)
    x = torch.randn(400, 300, generator=torch.Generator().manual_seed(0))
    program = program_of(lambda x: [x.sum(), x.sum(0)], [x])
    first = program([x])
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(program([x]), first, strict=True))
