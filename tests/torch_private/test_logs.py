from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor

import adjoint
from adjoint.torch_private.logs import unlogged

LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """What torch logs about fakes and their sizes."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    torch._dynamo.reset()
    yield messages
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.parametrize("other", [0, 1, 3])
def test_a_failed_attempt_for_general_shapes_is_not_logged(other: int, logged: list[str]) -> None:
    """Of an empty batch, torch takes `Max(1, size)` for 1 and for the size."""

    def by_columns(x: Tensor) -> Tensor:
        return x.t().contiguous().t() * 2

    compiled = torch.compile(by_columns, backend="adjoint")
    for count in (8, other, 5):
        x = torch.randn(count, 4).t().contiguous().t()
        torch.testing.assert_close(compiled(x), by_columns(x))
    assert not logged


def test_a_view_that_is_made_of_a_copy_is_not_logged(logged: list[str]) -> None:
    """A conjugate has no view as reals; what was written through it has one."""

    def written(x: Tensor, y: Tensor) -> Tensor:
        y.conj().mul_(1j)
        y.imag.neg_()
        return x * y

    x, y = torch.randn(2, 3, 4, dtype=torch.complex128)
    ys = [y.clone().conj() for _ in range(2)]
    compiled = torch.compile(written, backend="adjoint")
    torch.testing.assert_close(compiled(x, ys[0]), written(x, ys[1]))
    torch.testing.assert_close(*ys)
    assert not logged


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (x @ x).sum(),
        lambda x: (x + torch.ones(5)).sum(),
        lambda x: F.avg_pool2d(x[None], 7).sum(),
        lambda x: torch.view_as_real(torch.complex(x, x).conj()).sum(),
    ],
)
def test_an_error_of_the_users_is_raised_and_not_logged_too(
    wrong: Callable[[Tensor], Tensor], logged: list[str]
) -> None:
    x = torch.randn(2, 3)
    with pytest.raises(RuntimeError) as expected:
        torch.func.grad(wrong)(x)
    with pytest.raises(RuntimeError) as raised:
        adjoint.grad(wrong)(x)
    assert str(raised.value) == str(expected.value)
    assert not logged


def test_other_threads_and_other_records_are_logged(logged: list[str]) -> None:
    logger = logging.getLogger(LOGGERS[0])
    with unlogged, ThreadPoolExecutor() as pool:
        logger.warning("failed in this thread")
        logger.warning("something else")
        pool.submit(logger.warning, "failed in another thread").result()
    logger.warning("failed outside")
    assert logged == ["something else", "failed in another thread", "failed outside"]
