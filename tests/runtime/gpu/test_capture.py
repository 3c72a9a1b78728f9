from __future__ import annotations

import pytest
import torch

from adjoint.runtime.gpu.capture import CudaCapturer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda", 0)


@pytest.fixture(params=[False, True], ids=["plain", "draws"])
def capturer(request: pytest.FixtureRequest) -> CudaCapturer:
    return CudaCapturer(DEVICE, draws=request.param)


def stream() -> int:
    return torch.cuda.current_stream().cuda_stream


def test_nothing_runs_until_it_is_launched(capturer: CudaCapturer) -> None:
    x = torch.zeros(8, device=DEVICE)
    graph, result = capturer.capture(lambda on: x.add_(1).mul(2), stream())
    assert x.tolist() == [0] * 8
    for step in range(1, 4):
        graph.launch(stream())
        assert x.tolist() == [step] * 8
        assert result.tolist() == [2 * step] * 8


def test_the_stream_given_is_the_one_that_torch_uses(capturer: CudaCapturer) -> None:
    x = torch.zeros(8, device=DEVICE)

    def work(on: int) -> None:
        x.add_(1)
        assert on == stream() != before

    before = stream()
    capturer.capture(work, stream())
    assert stream() == before


def test_its_memory_is_its_own(capturer: CudaCapturer) -> None:
    x = torch.rand(1024, 1024, device=DEVICE)
    x @ x  # Libraries open on first use, which cannot be recorded.
    graph, result = capturer.capture(lambda on: (x @ x).div(1024).sin() @ x, stream())
    others = [torch.zeros(1024, 1024, device=DEVICE) for _ in range(16)]
    graph.launch(stream())
    torch.testing.assert_close(result, (x @ x).div(1024).sin() @ x)
    assert not any(other.any() for other in others)


def test_a_result_may_outlive_it(capturer: CudaCapturer) -> None:
    x = torch.ones(1 << 20, device=DEVICE)
    graph, result = capturer.capture(lambda on: x * 3, stream())
    graph.launch(stream())
    del graph
    torch.cuda.empty_cache()
    others = [torch.zeros(1 << 20, device=DEVICE) for _ in range(4)]
    assert result.eq(3).all()
    assert not any(other.any() for other in others)


def test_recordings_of_a_stream_share_memory() -> None:
    capturer = CudaCapturer(DEVICE)
    x = torch.ones(1 << 24, device=DEVICE)
    out = torch.empty_like(x)
    first, _ = capturer.capture(lambda on: out.copy_(x * 3), stream())
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    second, _ = capturer.capture(lambda on: out.copy_(x * 5), stream())
    assert torch.cuda.memory_reserved() == before
    first.launch(stream())
    assert out.eq(3).all()
    second.launch(stream())
    assert out.eq(5).all()


def test_after_a_failure_all_is_as_it_was(capturer: CudaCapturer) -> None:
    x = torch.ones(8, device=DEVICE)
    with pytest.raises(RuntimeError):
        capturer.capture(lambda on: float((x * 3).sum()), stream())
    assert not torch.cuda.is_current_stream_capturing()
    assert float((x * 3).sum()) == 24
    torch.rand(3, device=DEVICE)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph, result = capturer.capture(lambda on: x * 5, stream())
    graph.launch(stream())
    assert result.tolist() == [5] * 8


def test_one_may_go_while_another_is_made(capturer: CudaCapturer) -> None:
    x = torch.ones(8, device=DEVICE)
    old = [capturer.capture(lambda on: x * 3, stream())]

    def work(on: int) -> torch.Tensor:
        old.clear()
        return x * 5

    graph, result = capturer.capture(work, stream())
    graph.launch(stream())
    assert result.tolist() == [5] * 8


def test_each_replay_draws_the_numbers_that_eager_would() -> None:
    x = torch.ones(1000, device=DEVICE)
    graph, result = CudaCapturer(DEVICE, draws=True).capture(
        lambda on: [torch.nn.functional.dropout(x, 0.5), torch.rand(7, device=DEVICE)], stream()
    )
    found, expected = [], []
    for seed in (3, 4):
        torch.manual_seed(seed)
        for _ in range(3):
            graph.launch(stream())
            found.append([each.clone() for each in result])
        found.append([torch.rand(5, device=DEVICE)])
        torch.manual_seed(seed)
        for _ in range(3):
            dropped = torch.nn.functional.dropout(x, 0.5)
            expected.append([dropped, torch.rand(7, device=DEVICE)])
        expected.append([torch.rand(5, device=DEVICE)])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_failure_leaves_the_generator_usable() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3, device=DEVICE)
    torch.manual_seed(0)
    with pytest.raises(RuntimeError):
        CudaCapturer(DEVICE, draws=True).capture(
            lambda on: float(torch.rand(4, device=DEVICE).sum()), stream()
        )
    torch.testing.assert_close(torch.rand(3, device=DEVICE), expected, rtol=0, atol=0)
