from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.graph.evaluation import InputsWithHistory
from adjoint.runtime.gpu.captured_calls import CAPTURES, STATIC_BYTES
from adjoint.runtime.gpu.cuda_graphs import (
    CALLS_BEFORE_CAPTURE,
    MAX_CONSECUTIVE_MISSES,
    MAX_COPIED_RESULTS,
    MAX_GRAPHS,
    MAX_GRAPHS_PER_KEY,
    MAX_HELD_FRACTION,
    MAX_UNUSED_CAPTURES,
    MISSES_BEFORE_HOLDING,
    CudaGraphs,
)
from adjoint.runtime.gpu.results import MAX_SMALL_BYTES, AllocateSlot
from tests.capturing import SIDE, STREAM, Place, Program, StandIn

# Results of so many elements are not copied.
LARGE = MAX_SMALL_BYTES // 4 + 1


def double(x: torch.Tensor) -> list[torch.Tensor]:
    return [2 * x]


def settled(function: Callable[..., Any], *inputs: Any) -> Program:
    """A program that is captured for `inputs`."""
    program = Program(function, len(inputs))
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        program(*inputs)
    assert len(program.capturer.made) == 1
    return program


def large() -> torch.Tensor:
    return torch.rand(LARGE)


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


class TestResults:
    def test_what_is_held_is_not_written_to(self) -> None:
        x = large()
        program = Program(double)
        held = []
        for step in range(20):
            x.fill_(step)
            held.append(program(x)[0])
        for step, result in enumerate(held):
            assert result.eq(2 * step).all()
        assert len({result.data_ptr() for result in held}) == 20

    def test_nothing_is_kept(self) -> None:
        x = large()
        program = settled(lambda x: [2 * x, (y := x + 1), y[3:]], x)
        results = program(x)
        (pool,) = program.capturer.pools.values()
        assert program.replays == 2
        assert [holders.are_gone() for _, holders in pool._buffers] == [False, False]
        del results
        assert [holders.are_gone() for _, holders in pool._buffers] == [True, True]

    def test_two_recordings_take_turns(self) -> None:
        """Each result is let go when the next is there."""
        x = large()
        program = Program(double)
        for step in range(20):
            x.fill_(step)
            result = program(x)[0]
            assert result.eq(2 * step).all()
        assert len(program.capturer.made) == 2
        assert program.replays > 10

    def test_few_bytes_that_are_held_are_copied(self) -> None:
        x = large()
        program = Program(lambda x: [2 * x, x.sum()])
        losses = []
        for step in range(20):
            x.fill_(step)
            losses.append(program(x)[1])
        assert [float(loss) for loss in losses] == [float(LARGE * step) for step in range(20)]
        assert len(program.capturer.made) == 2
        assert program.cuda_graphs._copied_results == {1}
        assert program.replays > 20 - CALLS_BEFORE_CAPTURE - 3

    def test_if_many_are_held_they_take_turns(self) -> None:
        x = large()
        program = Program(lambda x: [x.sum() + n for n in range(MAX_COPIED_RESULTS + 1)])
        for step in range(20):
            x.fill_(step)
            results = program(x)
            for n, each in enumerate(results):
                torch.testing.assert_close(each, x.sum() + n)
        assert len(program.capturer.made) == MAX_GRAPHS_PER_KEY
        assert program.cuda_graphs._copied_results == set()

    def test_small_results_of_a_recording_stay_where_they_are(self) -> None:
        """So that a program that uses them is recorded in the same step as that."""
        x, unrecorded = large(), torch.rand(3)
        first, second = settled(lambda x: [x[:3] * 2], x), Program(double)
        for _ in range(CALLS_BEFORE_CAPTURE):
            second(unrecorded)
        (between,) = first(x)
        torch.testing.assert_close(second(between)[0], 4 * x[:3])
        assert second.replays == 1

    def test_a_view_of_a_copy_is_a_view(self) -> None:
        x = torch.rand(3, 4)
        program = settled(lambda x: [y := x + 1, y.t()], x)
        static_results = program(x)
        program(x)
        assert program.cuda_graphs._copied_results == {0}
        del static_results
        one, other = program(x)
        assert other._base is one
        torch.testing.assert_close(other, (x + 1).t())

    def test_what_the_program_asks_memory_for_is_made_there(self) -> None:
        x = large()
        asked = []

        def run(inputs: list[Any], place: Any, stream: int, new: AllocateSlot) -> Any:
            (given,) = inputs
            inputs.clear()
            asked.append(new(5, (LARGE,), (1,), torch.float32))
            torch.mul(given, 2, out=asked[-1])
            return [asked.pop(), given + 1]

        capturer = StandIn()
        cuda_graphs, place = CudaGraphs(run, [0], capturer), Place()
        for step in range(6):
            x.fill_(step)
            results = cuda_graphs([x], place, STREAM)
            assert results[0].eq(2 * step).all()
            assert results[1].eq(step + 1).all()
            del results
        assert cuda_graphs.replays == 6 - CALLS_BEFORE_CAPTURE
        (layout,) = cuda_graphs._layouts.values()
        assert [each.slot for each in layout.made] == [5, None]

    def test_what_is_laid_out_in_another_way_is_not_recorded(self) -> None:
        x = torch.rand(1024, 512)
        ways = iter([1, 1, 0, 1, 1])
        program = Program(lambda x: [2 * x if next(ways) else 2 * x.t().contiguous().t()])
        for _ in range(4):
            torch.testing.assert_close(program(x)[0], 2 * x)
        assert "not laid out as they were" in program.cuda_graphs.why

    def test_they_are_new_tensors(self) -> None:
        x = large()
        program = settled(double, x)
        (first,) = program(x)
        first.add_(1)
        address = first.data_ptr()
        del first
        (second,) = program(x)
        assert second.data_ptr() == address
        assert (second._version, second.requires_grad, second._base) == (0, False, None)

    def test_an_input_is_returned_as_itself(self) -> None:
        x = large()
        program = settled(lambda x: [x, 2 * x], x)
        again = x.detach()
        result = program(again)
        assert result[0] is again
        assert program.replays == 2

    @pytest.mark.parametrize("rows", [8, 512])
    def test_what_is_an_input_has_no_history_if_inputs_are_tracked(self, rows: int) -> None:
        x = torch.rand(rows, 1024, requires_grad=True)
        program = Program(lambda x: [2 * x, x, x.t()])
        for _ in range(CALLS_BEFORE_CAPTURE + 3):
            with torch.no_grad():
                new, same, turned = program.cuda_graphs(
                    InputsWithHistory([x]), program.place, STREAM
                )
            torch.testing.assert_close(new, 2 * x.detach())
            assert not same.requires_grad
            for each in (same, turned):
                assert each.data_ptr() == x.data_ptr()
                assert each._base is not x
            x.detach().add_(1)
            assert same._version == x._version
            del new, same, turned
        assert program.replays > 1

    def test_a_view_of_an_input_is_one_of_this_input(self) -> None:
        x = large()
        program = settled(lambda x: [x[3:].view(1, -1), 2 * x], x)
        again = x.detach()
        view, _ = program(again)
        assert program.replays == 2
        assert view._base is again
        again.add_(1)
        assert view._version == again._version
        torch.testing.assert_close(view, x[3:].view(1, -1))

    def test_of_an_input_that_is_copied_too(self) -> None:
        x = large()
        program = Program(lambda x, s: [x * s, s, s.expand(3)], 2)
        for n in range(12):
            scale = torch.tensor([0.0, n])[1:]
            results = program(x, scale)
            assert results[1] is scale
            assert results[2].data_ptr() == scale.data_ptr()
            torch.testing.assert_close(results[2], scale.expand(3))
            del results
        assert program.replays > 0

    def test_views_of_one_another_stay_so(self) -> None:
        x = large()
        program = settled(lambda x: [y := 2 * x, y[1:]], x)
        whole, part = program(x)
        assert program.replays == 2
        assert part._base is whole
        part.add_(1)
        assert whole._version == 1

    @pytest.mark.parametrize("rows", [8, 512])
    def test_a_view_of_all_of_something_hidden_is_a_tensor_of_its_own(self, rows: int) -> None:
        x = torch.rand(rows, 1024)
        program = settled(lambda x: [(2 * x).t()], x)
        (result,) = program(x)
        assert program.replays == 2
        assert result.stride() == (1, 1024)
        assert result._base is None
        torch.testing.assert_close(result, 2 * x.t())

    @pytest.mark.parametrize("rows", [8, 512])
    def test_a_view_of_a_part_of_something_hidden_is_a_view(self, rows: int) -> None:
        x = torch.rand(rows, 1024)
        program = settled(lambda x: [(2 * x)[1:, ::2]], x)
        (result,) = program(x)
        assert program.replays == 2
        assert result._base is not None
        torch.testing.assert_close(result, 2 * x[1:, ::2])

    def test_what_is_no_tensor_stays_what_it_is(self) -> None:
        x = large()
        program = settled(lambda x: (2 * x, None, [3]), x)
        result = program(x)
        assert program.replays == 2
        assert result[1:] == (None, [3])

    def test_of_inference_are_so(self) -> None:
        x = large()
        program = Program(double)
        with torch.inference_mode():
            for _ in range(CALLS_BEFORE_CAPTURE + 2):
                (result,) = program(x)
                assert result.is_inference()
                del result


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
