from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import torch

from adjoint.runtime.cpu import callables
from adjoint.runtime.cpu.callables import (
    MAX_REPORTED_TENSORS,
    kernel_runner,
    misfit_finder,
    runner,
    takes_tensors,
    words_of,
)

# The first word of the table, the number of steps and the last argument, added.
ADDS = """\
define internal i64 @adds(ptr %a, i64 %b, ptr %table, ptr %c, i64 %d, i64 %last) {
  %first = load i64, ptr %table
  %more = add i64 %first, %d
  %sum = add i64 %more, %last
  ret i64 %sum
}
"""


def test_integers_arrive_and_results_come_back() -> None:
    table = np.zeros(4, dtype=np.int64)
    words = words_of(0, 0, table.ctypes.data, 0, 1000)
    add = runner(ADDS, "adds")(words.ctypes.data)
    assert add(20, 3) == 1023
    assert add(-20, 7, 3) == 983
    assert table[:2].tolist() == [-20, 7]
    assert add(0x7FFF_0000_1234, 0) == 0x7FFF_0000_1234 + 1000


def test_errors_are_pythons() -> None:
    table = np.zeros(4, dtype=np.int64)
    words = words_of(0, 0, table.ctypes.data, 0, 0)
    run = kernel_runner()(words.ctypes.data)
    with pytest.raises(TypeError):
        run("no address", 1)
    with pytest.raises(OverflowError):
        run(1 << 70, 1)
    # What an error is signalled by is a number, too.
    assert run(-1, 1) == 0
    assert table[0] == -1


def test_tensors_arrive_as_their_addresses() -> None:
    class Kind(torch.Tensor):
        pass

    plain = torch.zeros(4)
    tensors = [plain, plain[1:], torch.nn.Parameter(plain), plain.as_subclass(Kind)]
    table = np.zeros(len(tensors), dtype=np.int64)
    words = words_of(0, 0, table.ctypes.data, 0, 0)
    run = kernel_runner()(words.ctypes.data)
    assert run(*tensors, 1) == 0
    assert table.tolist() == [tensor.data_ptr() for tensor in tensors]
    # A tensor of one integer is a tensor, although Python can use it as an integer.
    number = torch.tensor(5)
    run(number, 1)
    assert table[0] == number.data_ptr()


def test_without_memory_there_is_no_address() -> None:
    table = np.zeros(1, dtype=np.int64)
    words = words_of(0, 0, table.ctypes.data, 0, 0)
    run = kernel_runner()(words.ctypes.data)
    without = torch._C._functorch._add_batch_dim(torch.zeros(2, 3), 0, 1)
    with pytest.raises(TypeError):
        run(without, 1)


def test_addresses_alone_where_nothing_is_known_of_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callables, "takes_tensors", lambda: False)
    monkeypatch.setattr(callables, "tensor_objects", lambda: None)
    table = np.zeros(1, dtype=np.int64)
    words = words_of(0, 0, table.ctypes.data, 0, 1000)
    add = runner(ADDS, "adds")(words.ctypes.data)
    assert add(20, 3) == 1023
    with pytest.raises(TypeError):
        add(torch.zeros(2), 3)


def misfits(expected: list[tuple[int, tuple[int, ...]]], *tensors: object) -> int:
    """The bits of the tensors that do not have an alignment and strides."""
    numbers = [n for alignment, s in expected for n in (alignment - 1, len(s), *s)]
    layout = np.array(numbers, dtype=np.int64)
    words = words_of(layout.ctypes.data)
    return misfit_finder()(words.ctypes.data)(*tensors)


def test_what_cannot_be_read_as_it_is() -> None:
    assert takes_tensors()
    good, strides = torch.zeros(4, 6), (6, 1)
    cases: list[tuple[object, bool]] = [
        (good, True),
        (torch.nn.Parameter(good), True),
        (good.t(), False),
        (good[:, 1:], True),
        (torch.zeros(1).expand(4, 6), False),
        (torch.zeros(24), False),
        (torch.zeros(2, 2, 6), False),
        (torch.zeros(0, 6), False),
        (torch._efficientzerotensor((4, 6)), False),
        (torch._neg_view(good), False),
        (good.to_sparse(), False),
        (3, False),
        (None, False),
    ]
    for value, fits in cases:
        assert misfits([(1, strides)], value) == (0 if fits else 1), value
    wrong = [place for place, (_, fits) in enumerate(cases) if not fits]
    found = misfits([(1, strides)] * len(cases), *[value for value, _ in cases])
    assert found == sum(1 << place for place in wrong)
    assert misfits([(1, ()), (1, (1,))], torch.zeros(()), torch.zeros(3)) == 0
    assert misfits([(16, (6, 1))] * 2, good, good[:, 1:]) == 2


def test_of_many_tensors_all_are_reported() -> None:
    count = MAX_REPORTED_TENSORS + 4
    good = [torch.zeros(3)] * count
    assert misfits([(1, (1,))] * count, *good) == 0
    assert misfits([(1, (1,))] * count, *good[1:], torch.zeros(6)[::2]) == -1


def test_many_threads_and_the_garbage_collector() -> None:
    """The interpreter's lock is released and taken again."""
    wrong: list[int] = []

    def work(number: int) -> None:
        table = np.zeros(2, dtype=np.int64)
        words = words_of(0, 0, table.ctypes.data, 0, number)
        add = runner(ADDS, "adds")(words.ctypes.data)
        wrong.extend(step for step in range(2000) if add(step, 1) != step + 1 + number)
        del add
        gc.collect()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_callable_may_outlive_all_modules() -> None:
    """At exit, the last garbage collection visits what a cycle holds, after modules are cleared."""
    text = """
        import builtins
        from adjoint.runtime.cpu import callables

        class Cycle:
            pass

        words = callables.words_of(0)
        held = builtins.held = Cycle()
        held.self, held.callable = held, callables.misfit_finder()(words.ctypes.data)
        del held
    """
    # What is freed is overwritten, so that reading it fails.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "MALLOC_PERTURB_": "255"}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text)]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
