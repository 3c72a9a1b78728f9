"""Results of captured calls: in memory of the graph, in new memory, held by the caller."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.graph.evaluation import InputsWithHistory
from adjoint.runtime.gpu.cuda_graphs import (
    CALLS_BEFORE_CAPTURE,
    MAX_COPIED_RESULTS,
    MAX_GRAPHS_PER_KEY,
    CudaGraphs,
)
from adjoint.runtime.gpu.results import AllocateSlot
from tests.capturing import LARGE, STREAM, Place, Program, StandIn, double, large, settled


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
