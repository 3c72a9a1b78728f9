from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from adjoint.host_memory import CPU, STAGING_BUFFERS, from_host, to_host, transfers_of

on_a_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=on_a_gpu)]


def made(device: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_a_value_comes_back_as_it_was(device: str, dtype: torch.dtype) -> None:
    for x in (
        made(device, 5, 7, dtype=dtype),
        made(device, 5, 7, dtype=dtype).t(),
        made(device, 3, 4, 5, 6, dtype=dtype).to(memory_format=torch.channels_last),
        made(device, 5, 8, dtype=dtype)[:, :3],
        made(device, 0, 3, dtype=dtype),
        made(device, dtype=dtype),
    ):
        host = to_host(x)
        assert host.device == CPU
        # Without elements there is no memory that could be pinned.
        assert host.is_pinned() == (device == "cuda" and x.numel() > 0)
        back = from_host(host, x.device, [])
        assert back.device == x.device
        assert back.stride() == host.stride() == x.stride()
        assert torch.equal(back, x)
        if x.numel():
            assert back.data_ptr() not in (x.data_ptr(), host.data_ptr())


@pytest.mark.parametrize("device", DEVICES)
def test_cotangents_go_the_other_way(device: str) -> None:
    x = made(device, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: from_host(to_host(x), x.device, []).sin(), x)
    assert torch.autograd.gradgradcheck(lambda x: from_host(to_host(x), x.device, []).sin(), x)


@pytest.mark.parametrize("device", DEVICES)
def test_batches(device: str) -> None:
    x = made(device, 3, 4)
    found = torch.func.vmap(lambda x: from_host(to_host(x), x.device, []) * 2)(x)
    assert torch.equal(found, x * 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ahead", [False, True])
def test_many_values_while_the_device_computes(ahead: bool) -> None:
    """Each is overwritten on the device as soon as it was sent, and they outnumber the buffers."""
    work = made("cuda", 2048, 2048)
    x = torch.empty(1 << 20, device="cuda")
    hosts: list[Tensor] = []
    for number in range(8 * STAGING_BUFFERS):
        work = (work @ work).tanh()
        x.fill_(number)
        hosts.append(to_host(x))
        x.fill_(-1)
    order = list(reversed(range(len(hosts))))
    for number in order:
        work = (work @ work).tanh()
        following = [hosts[number - 1]] if ahead and number else []
        back = from_host(hosts[number], x.device, following)
        assert back.eq(number).all()
    # What was begun and never read is forgotten.
    assert from_host(hosts[3], x.device, [hosts[5]]).eq(3).all()
    assert from_host(hosts[7], x.device, [hosts[5]]).eq(7).all()
    assert from_host(hosts[5], x.device, []).eq(5).all()
    assert all(each.fetched is None for each in transfers_of(x.device)._buffers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_hooks_see_what_has_arrived() -> None:
    work, x = made("cuda", 4096, 4096), torch.zeros(1 << 22, device="cuda")
    with saved_tensors_hooks(lambda t: t, lambda t: t):
        for _ in range(8):
            work = work @ work
        host = to_host(x + 1)
    assert host.eq(1).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("order", [1, 2])
def test_a_network_that_offloads(order: int) -> None:
    """Less memory on the device, and the same derivatives."""
    from tests.partition.test_marks import derivatives, policy

    def layer(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).tanh() @ w.t()

    def network(x: Tensor, w: Tensor, name: str) -> Tensor:
        for _ in range(6):
            contexts = policy(name)
            x = x + checkpoint(layer, x, w, use_reentrant=False, context_fn=contexts)
        return x.square().mean()

    x = (made("cuda", 4096, 64) / 8).requires_grad_()
    w = (made("cuda", 64, 1024) / 32).requires_grad_()

    def without_checkpoints(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(6):
            x = x + layer(x, w)
        return x.square().mean()

    # Eager's checkpoints cannot be differentiated twice.
    expected = derivatives(without_checkpoints, (x, w), order)
    peaks: dict[str, int] = {}
    for name in ("MUST_SAVE", "MUST_CPU_OFFLOAD"):
        torch._dynamo.reset()

        def marked(x: Tensor, w: Tensor, name: str = name) -> Tensor:
            return network(x, w, name)

        compiled: Any = torch.compile(marked, backend="adjoint", fullgraph=True)
        for _ in range(3):
            torch.testing.assert_close(derivatives(compiled, (x, w), order), expected)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        derivatives(compiled, (x, w), order)
        peaks[name] = torch.cuda.max_memory_allocated() - before
    if order == 1:
        assert peaks["MUST_CPU_OFFLOAD"] < 0.75 * peaks["MUST_SAVE"]
