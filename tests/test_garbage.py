import gc
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from adjoint import garbage
from adjoint.garbage import full_collections_wait
from adjoint.stage_runner import StageRunner
from adjoint.store.keeping import Store
from tests.caching import Network, fresh, gradients


@pytest.fixture
def thresholds() -> Iterator[tuple[int, int, int]]:
    before = gc.get_threshold()
    gc.set_threshold(10, 2, 1)
    yield gc.get_threshold()
    gc.set_threshold(*before)


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def surviving() -> list[list[list[object]]]:
    """Many objects, more than a quarter of those of the process."""
    return [[[]] for _ in range(len(gc.get_objects()) // 8)]


def test_full_collections_wait(thresholds: tuple[int, int, int]) -> None:
    before = full_collections()
    with full_collections_wait():
        kept = surviving()
        assert full_collections() == before
    kept += surviving()
    assert full_collections() > before
    assert gc.get_threshold() == thresholds


def test_garbage_is_bounded_where_compilations_never_end(thresholds: tuple[int, int, int]) -> None:
    before = full_collections()
    with full_collections_wait():
        kept = [surviving() for _ in range(20)]
    assert len(kept) == 20
    assert full_collections() > before


def test_contexts_that_overlap(thresholds: tuple[int, int, int]) -> None:
    """As compilations in two threads do: the first to begin is the first to end."""
    first, second = full_collections_wait(), full_collections_wait()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[2] > thresholds[2]
    second.__exit__(None, None, None)
    assert gc.get_threshold() == thresholds


def test_a_threshold_set_meanwhile_is_left(thresholds: tuple[int, int, int]) -> None:
    with full_collections_wait():
        gc.set_threshold(20, 3, 4)
    assert gc.get_threshold() == (20, 3, 4)


def test_an_error_ends_it(thresholds: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="own"), full_collections_wait():
        raise ValueError("own")
    assert gc.get_threshold() == thresholds


def test_compiling_and_keeping_wait(
    thresholds: tuple[int, int, int],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever a stage runs or an entry is written, a full collection waits."""
    seen: dict[str, set[int]] = {"stage": set(), "write": set()}
    stage, write = StageRunner.stage, Store._write_now

    def noted_stage(
        self: StageRunner, name: str, order: int, make: Callable[[], object], *nodes: int
    ) -> object:
        def noted() -> object:
            seen["stage"].add(gc.get_threshold()[2])
            return make()

        return stage(self, name, order, noted, *nodes)

    def noted_write(self: Store, *args: object) -> None:
        seen["write"].add(gc.get_threshold()[2])
        write(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StageRunner, "stage", noted_stage)
    monkeypatch.setattr(Store, "_write_now", noted_write)
    gc.set_threshold(700, 10, 1)
    net = Network().double()
    store = Store(tmp_path_factory.mktemp("kept"), 1 << 30)
    gradients(fresh(net, store), net, torch.rand(7, 3, dtype=torch.float64))
    store.flush()
    assert seen["write"]
    assert min(seen["stage"] | seen["write"]) > 1
    # Compilations of earlier tests may still be going on in threads of their own.
    deadline = time.monotonic() + 20
    while garbage._GOING_ON and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gc.get_threshold() == (700, 10, 1)
