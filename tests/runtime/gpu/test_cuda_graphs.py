from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from adjoint.runtime.gpu.captured_calls import CAPTURES, STATIC_BYTES
from adjoint.runtime.gpu.cuda_graphs import (
    CALLS_BEFORE_CAPTURE,
    MAX_CONSECUTIVE_MISSES,
    MAX_GRAPHS,
    MAX_HELD_FRACTION,
    MAX_UNUSED_CAPTURES,
    MISSES_BEFORE_HOLDING,
)
from tests.capturing import LARGE, SIDE, STREAM, Place, Program, double, large, settled


class TestAddresses:
    def test_what_comes_again_is_recorded_and_reads_what_is_there_by_then(self) -> None:
        x = large()
        program = Program(double)
        for step in range(CALLS_BEFORE_CAPTURE + 4):
            x += 1
            (result,) = program(x.detach())
            torch.testing.assert_close(result, 2 * x)
            assert program.replays == max(0, step + 1 - CALLS_BEFORE_CAPTURE)
            del result
        (captured,) = program.capturer.made
        assert captured.streams == [STREAM] * 4
        assert program.streams[: CALLS_BEFORE_CAPTURE + 1] == [STREAM] * CALLS_BEFORE_CAPTURE + [
            SIDE
        ]

    def test_other_addresses_are_other_calls(self) -> None:
        x, y = large(), large()
        program = settled(double, x)
        torch.testing.assert_close(program(y)[0], 2 * y)
        assert program.replays == 1
        torch.testing.assert_close(program(x)[0], 2 * x)
        assert program.replays == 2

    def test_strides_matter(self) -> None:
        x = torch.rand(1024, 1024)
        program = settled(double, x)
        torch.testing.assert_close(program(x.t())[0], 2 * x.t())
        assert program.replays == 1

    def test_numbers_matter(self) -> None:
        x = large()
        program = settled(lambda x, n: [x * n], x, 3)
        torch.testing.assert_close(program(x, 4)[0], 4 * x)
        assert program.replays == 1

    def test_settings_of_torch_matter(self) -> None:
        x = large()
        program = settled(double, x)
        program.capturer.told = "another precision"
        program(x)
        assert program.replays == 1

    def test_a_number_that_is_negated_when_it_is_read_is_not_at_its_address(self) -> None:
        x = large()
        program = settled(double, x)
        lazy = torch.complex(x, x).conj().imag
        assert lazy.is_neg()
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            torch.testing.assert_close(program(lazy)[0], 2 * lazy)
        assert program.replays == 1

    def test_zeros_that_are_nowhere_are_not_at_an_address(self) -> None:
        x = large()
        program = Program(lambda x, y: [x + y], 2)
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            zeros = torch._efficientzerotensor(LARGE)
            torch.testing.assert_close(program(x, zeros)[0], x)
        assert program.replays == 0

    def test_nothing_is_nowhere(self) -> None:
        x = large()
        program = settled(lambda x, y: [2 * x, 2 * y], x, torch.empty(0, 3))
        assert program(x, torch.empty(0, 3))[1].shape == (0, 3)
        assert program.replays == 2

    def test_where_somebody_else_records_it_takes_part(self) -> None:
        x = large()
        program = settled(double, x)
        program.capturer.somebody_records = True
        program(x)
        assert program.replays == 1

    def test_a_call_inside_a_call_runs_as_it_is(self) -> None:
        x = large()

        def nested(x: torch.Tensor) -> list[torch.Tensor]:
            found: list[torch.Tensor] = program(x) if len(program.streams) == 1 else double(x)
            return found

        program = Program(nested)
        torch.testing.assert_close(program(x)[0], 2 * x)

    def test_memory_inside_that_has_moved_ends_a_recording(self) -> None:
        x = large()
        program = settled(double, x)
        program.place.lease.is_stale = True
        program.place = Place()
        torch.testing.assert_close(program(x)[0], 2 * x)
        assert program.replays == 1
        assert program.cuda_graphs._captured == []
        for _ in range(CALLS_BEFORE_CAPTURE):
            program(x)
        assert program.replays == 2


class TestInputsThatMove:
    def test_few_bytes_are_copied(self) -> None:
        x = large()
        program = Program(lambda x, s: [x * s], 2)
        numbers = [torch.tensor(float(n)) for n in range(12)]
        for n in numbers:
            torch.testing.assert_close(program(x, n)[0], x * n)
        assert program.replays == len(numbers) - CALLS_BEFORE_CAPTURE
        assert program.cuda_graphs._moving_inputs == {1}

    def test_whatever_their_strides(self) -> None:
        x = torch.rand(512, 1024)
        program = Program(lambda x, s: [x * s], 2)
        rows = [torch.rand(4, 1024)[::3, :].t()[:, :1].expand(1024, 512).t() for _ in range(12)]
        assert 0 in rows[0].stride()
        for row in rows:
            torch.testing.assert_close(program(x, row)[0], x * row)
        assert program.replays > 0

    def test_elements_that_are_read_twice_and_gaps_that_make_up_for_them(self) -> None:
        program = Program(double)
        columns = [torch.rand(2, 3)[:, 0].expand(2, 2) for _ in range(12)]
        for column in columns:
            torch.testing.assert_close(program(column)[0], 2 * column)
        assert program.replays > 0

    def test_many_bytes_are_not(self) -> None:
        x = large()
        program = Program(lambda x, y: [x * y], 2)
        moving = [large() for _ in range(8)]
        for y in moving:
            program(x, y)
        assert program.replays == 0

    def test_from_then_on_they_are_copied_from_anywhere(self) -> None:
        x, first, second = large(), torch.tensor(1.0), torch.tensor(2.0)
        program = settled(lambda x, s: [x * s], x, first)
        torch.testing.assert_close(program(x, second)[0], x * 2)
        torch.testing.assert_close(program(x, first)[0], x)
        torch.testing.assert_close(program(x, second)[0], x * 2)
        assert program.cuda_graphs._moving_inputs == {1}
        assert program.replays == 4


class TestAnAllocatorThatReturnsOtherAddresses:
    """Large results lie in memory of the graph, if that is a small part of the device's."""

    @staticmethod
    def moving(
        function: Callable[..., Any], count: int = 1, device_bytes: int = 1 << 40
    ) -> Program:
        program = Program(function, count)
        program.capturer.device_bytes = device_bytes
        taken: list[torch.Tensor] = []

        def new(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
            taken.append(torch.empty_strided(shape, strides, dtype=dtype))
            return taken[-1]

        program.capturer.new = new  # type: ignore[method-assign]
        return program

    def test_results_lie_in_memory_of_the_graph(self) -> None:
        x = large()
        program = self.moving(double)
        for _ in range(4 * MISSES_BEFORE_HOLDING):
            x += 1
            (result,) = program(x.detach())
            torch.testing.assert_close(result, 2 * x)
            del result
        assert program.replays > MISSES_BEFORE_HOLDING
        assert STATIC_BYTES[x.device] >= LARGE * 4
        before = STATIC_BYTES[x.device]
        del program
        gc.collect()
        assert STATIC_BYTES[x.device] <= before - LARGE * 4

    def test_results_that_stay_referenced_are_not_written_to(self) -> None:
        x = large()
        program = self.moving(double)
        held = []
        for step in range(4 * MISSES_BEFORE_HOLDING):
            x.fill_(step)
            held.append(program(x)[0])
        for step, result in enumerate(held):
            assert result.eq(2 * step).all()

    def test_a_batch_is_copied(self) -> None:
        weights = torch.rand(4, LARGE)
        program = self.moving(lambda x, y: [x * y], 2)
        batches = [large() for _ in range(4 * MISSES_BEFORE_HOLDING)]
        for batch in batches:
            torch.testing.assert_close(program(weights, batch)[0], weights * batch)
        assert program.replays > MISSES_BEFORE_HOLDING
        assert program.cuda_graphs._moving_inputs == {1}

    def test_a_program_that_is_called_for_each_layer(self) -> None:
        """Inputs are never copied, and each layer has a graph."""
        layers = [torch.rand(2, LARGE) for _ in range(6)]
        program = self.moving(double)
        for _ in range(4 * MISSES_BEFORE_HOLDING):
            for weights in layers:
                torch.testing.assert_close(program(weights)[0], 2 * weights)
        assert len(program.capturer.made) == len(layers)
        assert program.replays > 4 * len(layers)
        assert not program.cuda_graphs._moving_inputs

    def test_not_if_captures_moved_them(self) -> None:
        """Another program takes memory in each step, so that the allocator's addresses move."""
        x = large()
        program, held = self.moving(double), STATIC_BYTES[x.device]
        for _ in range(4 * MISSES_BEFORE_HOLDING):
            torch.testing.assert_close(program(x)[0], 2 * x)
            CAPTURES[x.device] += 1
        assert program.replays == 0
        assert STATIC_BYTES[x.device] == held

    def test_what_graphs_hold_is_bounded(self) -> None:
        """However many sets of addresses come again."""
        x = large()
        room = STATIC_BYTES[x.device] + 3 * LARGE * 4
        program = self.moving(double, device_bytes=int(room / MAX_HELD_FRACTION))
        for _ in range(4 * MISSES_BEFORE_HOLDING):
            program(x)
        assert program.replays > 0
        for _ in range(8):
            x = large()
            for _ in range(4 * CALLS_BEFORE_CAPTURE):
                torch.testing.assert_close(program(x)[0], 2 * x)
                assert STATIC_BYTES[x.device] <= room
        assert len(program.capturer.made) > 3

    def test_not_if_it_is_much_of_the_memory(self) -> None:
        x = large()
        program = self.moving(double, device_bytes=LARGE * 4 * 32)
        for _ in range(MAX_CONSECUTIVE_MISSES + 1):
            torch.testing.assert_close(program(x)[0], 2 * x)
        assert program.replays == 0
        assert "not where they had been" in program.cuda_graphs.why


class TestGivingUp:
    def test_because_of_what_is_known_of_the_program(self) -> None:
        program = Program(double)
        program.cuda_graphs.why = "it draws numbers"
        x = large()
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            program(x)
        assert program.replays == 0

    def test_because_addresses_keep_changing(self) -> None:
        program = Program(double)
        held = [large() for _ in range(MAX_CONSECUTIVE_MISSES + 1)]
        for x in held:
            assert program.cuda_graphs.why == ""
            program(x)
        assert "tensors were not where they had been" in program.cuda_graphs.why
        torch.testing.assert_close(program(held[0])[0], 2 * held[0])

    def test_because_it_cannot_be_recorded(self) -> None:
        x = large()
        program = Program(double)
        program.capturer.error = RuntimeError("operation not permitted")
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            torch.testing.assert_close(program(x)[0], 2 * x)
        assert program.cuda_graphs.why == "it cannot be captured: operation not permitted"
        assert program.streams == [STREAM] * CALLS_BEFORE_CAPTURE + [SIDE] + [STREAM] * 2

    def test_because_a_result_has_a_type_that_its_memory_has_not(self) -> None:
        x = large()
        program = Program(lambda x: [y := 2 * x, y.view(torch.int32)])
        for _ in range(CALLS_BEFORE_CAPTURE + 1):
            torch.testing.assert_close(program(x)[1], (2 * x).view(torch.int32))
        assert "torch.int32 over memory of torch.float32" in program.cuda_graphs.why

    def test_because_a_result_is_computed_later(self) -> None:
        x = large()
        program = Program(lambda x: [torch.complex(x, x).conj()])
        for _ in range(CALLS_BEFORE_CAPTURE + 1):
            program(x)
        assert "lazily conjugated" in program.cuda_graphs.why

    def test_because_an_input_lies_elsewhere(self) -> None:
        program = Program(lambda x: [1])
        program(torch.empty(3, device="meta"))
        assert program.cuda_graphs.why == "an input is torch.float32, torch.strided, on meta"

    def test_the_oldest_goes_first_and_there_are_not_many(self) -> None:
        held = [large() for _ in range(MAX_GRAPHS + 1)]
        program = Program(double)
        for x in held:
            for _ in range(CALLS_BEFORE_CAPTURE + 2):
                program(x)
        assert len(program.capturer.made) == MAX_GRAPHS + 1
        assert len(program.cuda_graphs._captured) == MAX_GRAPHS
        before = program.replays
        program(held[1])
        assert program.replays == before + 1
        program(held[0])
        assert program.replays == before + 1

    def test_at_last_no_more_are_made(self) -> None:
        """Of graphs that are not replayed again."""
        held = [large() for _ in range(MAX_UNUSED_CAPTURES + 3)]
        program = Program(double)
        for x in held:
            for _ in range(CALLS_BEFORE_CAPTURE):
                torch.testing.assert_close(program(x)[0], 2 * x)
        assert len(program.capturer.made) == MAX_UNUSED_CAPTURES
        assert program.cuda_graphs.why == ""
        for x in held:
            program(x)
        assert len(program.capturer.made) > MAX_UNUSED_CAPTURES
