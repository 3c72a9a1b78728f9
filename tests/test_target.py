from __future__ import annotations

import dataclasses

import pytest

from adjoint.target import (
    CPU,
    REFERENCE,
    Machine,
    Rates,
    cpu_target,
    cuda_target,
)


def test_a_target_is_data() -> None:
    assert cpu_target(has_blas=True) == cpu_target(has_blas=True)
    assert {cuda_target(CPU, (9, 0)): 1}[cuda_target(CPU, (9, 0))] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        REFERENCE.name = "other"  # type: ignore[misc]


def test_rows_are_tiled_where_threads_can_call_a_blas() -> None:
    assert cpu_target(has_blas=True).tiles_rows
    assert not cpu_target(has_blas=False).tiles_rows
    assert not cuda_target(CPU, (9, 0)).tiles_rows


def test_a_grid_waits_for_memory_and_scatters_in_any_order() -> None:
    grid, threads = cuda_target(CPU, (8, 0)), cpu_target()
    for target in (grid, threads):
        assert target.has_kernels
        assert target.has_product_kernels == target.has_grid
        assert target.is_memory_bound == target.has_grid
        assert target.checks_indices_in_kernels == target.has_grid
        assert target.scatters_in_order != target.has_grid
        assert target.divides_halves_as_eager != target.has_grid
    assert grid.has_grid
    assert not threads.has_grid


@pytest.mark.parametrize("capability", [(7, 5), (8, 9), (9, 0), (10, 0)])
def test_what_a_gpu_has_follows_from_its_capability(capability: tuple[int, int]) -> None:
    target = cuda_target(CPU, capability)
    assert target.machine is not None
    assert target.machine.cpu == f"sm_{capability[0]}{capability[1]}"
    assert target.has_vector_atomics == (capability >= (9, 0))


def test_the_reference_has_no_kernels() -> None:
    assert not REFERENCE.has_kernels


def test_rates_say_how_much_is_computed_while_a_byte_arrives() -> None:
    assert Rates(2.0, 21.0).operators_per_byte == 10
    assert Rates(2.0, 0.5).operators_per_byte == 1


def test_attributes_are_those_of_the_family() -> None:
    assert "512" in Machine("x86_64-unknown-linux-gnu", "x86-64").attributes
    assert Machine("aarch64-unknown-linux-gnu", "generic").attributes == ""


def test_the_width_of_vector_registers() -> None:
    widths = {
        Machine("x86_64-linux", "znver3", "+avx,+avx2,-avx512f"): 32,
        Machine("x86_64-linux", "znver4", "+avx,+avx512f"): 64,
        Machine("x86_64-linux", "x86-64-v4"): 64,
        Machine("x86_64-linux", "x86-64-v3"): 32,
        Machine("x86_64-linux", "x86-64-v2"): 16,
        Machine("aarch64-linux", "neoverse-n1"): 16,
    }
    assert {machine: machine.vector_bytes for machine in widths} == widths
