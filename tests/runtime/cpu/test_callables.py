from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from adjoint.runtime.cpu.callables import kernel_runner, runner

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
    words = np.array([0, 0, table.ctypes.data, 0, 1000], dtype=np.int64)
    add = runner(ADDS, "adds")(words.ctypes.data)
    assert add(20, 3) == 1023
    assert add(-20, 7, 3) == 983
    assert table[:2].tolist() == [-20, 7]
    assert add(0x7FFF_0000_1234, 0) == 0x7FFF_0000_1234 + 1000


def test_errors_are_pythons() -> None:
    table = np.zeros(4, dtype=np.int64)
    words = np.array([0, 0, table.ctypes.data, 0, 0], dtype=np.int64)
    run = kernel_runner()(words.ctypes.data)
    with pytest.raises(TypeError):
        run("no address", 1)
    with pytest.raises(OverflowError):
        run(1 << 70, 1)
    # What an error is signalled by is a number, too.
    assert run(-1, 1) == 0
    assert table[0] == -1


def test_many_threads_and_the_garbage_collector() -> None:
    """The interpreter's lock is released and taken again."""
    wrong: list[int] = []

    def work(number: int) -> None:
        table = np.zeros(2, dtype=np.int64)
        words = np.array([0, 0, table.ctypes.data, 0, number], dtype=np.int64)
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
