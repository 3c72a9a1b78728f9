from __future__ import annotations

import gc

import torch

from adjoint.runtime.gpu.captured_calls import (
    CapturedCall,
    InputBuffer,
    is_small,
    is_static_result,
)
from adjoint.runtime.gpu.results import MAX_SMALL_BYTES


class Graph:
    """Writes to a result what is in a buffer, doubled."""

    def __init__(self, source: torch.Tensor, result: torch.Tensor) -> None:
        self.source, self.result = source, result
        self.streams: list[int] = []

    def launch(self, stream: int) -> None:
        self.streams.append(stream)
        self.result.copy_(2 * self.source)


class Lease:
    is_stale = False


def captured(like: torch.Tensor) -> tuple[CapturedCall, Graph]:
    """A call that doubles an input which is copied into a buffer."""
    buffer, result = InputBuffer(like), torch.empty(like.shape)
    graph = Graph(buffer.tensor, result)
    return CapturedCall(graph, Lease(), {0: buffer}, {0: result}), graph


def test_a_buffer_has_the_strides_of_the_input() -> None:
    for like in (torch.rand(3, 4), torch.rand(4, 3).t(), torch.rand(6, 4)[::2], torch.rand(())):
        buffer = InputBuffer(like)
        assert buffer.tensor.stride() == like.stride()
        target, source = buffer.pair(like)
        target.copy_(source)
        assert torch.equal(buffer.tensor, like)


def test_a_replay_reads_the_input_of_the_call() -> None:
    call, graph = captured(torch.zeros(3))
    for value in (1.0, 2.0):
        made = call.replay([torch.full((3,), value)], set(), 7)
        assert torch.equal(made[0], torch.full((3,), 2 * value))
    assert graph.streams == [7, 7]


def test_a_result_lies_in_memory_of_the_graph_or_is_copied() -> None:
    call, graph = captured(torch.zeros(3))
    shared = call.replay([torch.ones(3)], set(), 0)[0]
    assert shared.data_ptr() == graph.result.data_ptr()
    assert shared._version == 0
    copied = call.replay([torch.ones(3)], {0}, 0)[0]
    assert copied.data_ptr() != graph.result.data_ptr()


def test_results_that_are_referenced_are_known() -> None:
    call, _ = captured(torch.zeros(3))
    assert call.held() == []
    made = call.replay([torch.ones(3)], set(), 0)
    assert call.held() == [0]
    del made
    assert call.held() == []


def test_small_results_are_known_by_their_memory_while_the_graph_is_there() -> None:
    call, graph = captured(torch.zeros(3))
    assert is_static_result(graph.result)
    assert not is_static_result(torch.zeros(3))
    result = graph.result
    del call, graph
    gc.collect()
    assert not is_static_result(result)


def test_small_is_what_a_tensor_spans() -> None:
    count = MAX_SMALL_BYTES // 4
    assert is_small(torch.empty(count))
    assert not is_small(torch.empty(count + 1))
    assert not is_small(torch.empty(2, count)[:, :1])
