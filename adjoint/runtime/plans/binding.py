"""A binding: the host code's words, and the memory of temporaries, for one call at a time.

For another set of sizes the host code of the program is executed again; nothing is kept for sizes
of earlier calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from adjoint.graph.boundary import passes_through
from adjoint.loops.plan import LibraryCall, Size
from adjoint.open_types import TorchValue
from adjoint.runtime.cpu.callables import misfit_finder, takes_tensors, words_of
from adjoint.runtime.plans.host import Host, HostRun, NativeHost
from adjoint.runtime.plans.hostcode import Undefined, execute
from adjoint.runtime.plans.interpreter import interpreter
from adjoint.runtime.plans.layout import ALIGNMENT_BYTES, grown
from adjoint.torch_private import size_evaluation

Words: TypeAlias = npt.NDArray[np.int64]

# Makes the tensors of temporaries that library calls use, given the binding.
MakeTensors: TypeAlias = Callable[["Binding"], None]

# Memory for temporaries is freed when it is more than this many times what the sizes need.
MAX_UNUSED_FACTOR = 4

# Kinds of sizes (which axes are empty, or of size 1) for which library results are checked.
MAX_CHECKED_KINDS = 8


class BindingFailed(Exception):
    """A program cannot run for some sizes; `__cause__` says why.  Nothing has run."""


class _BindingFailures:
    """Raises `BindingFailed` for any failure inside.

    Every call with other sizes enters it, so it is no generator.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception) and not passes_through(error):
            raise BindingFailed from error


BINDING_FAILURES = _BindingFailures()


class Binding(ABC):
    """The values of all sizes, and memory for the program's temporaries."""

    def __init__(self, host: Host, make_tensors: MakeTensors) -> None:
        self.host = host
        self._make_tensors = make_tensors
        self._memory_of_words = np.array([*host.code.words, 0], dtype=np.int64)
        self.words = memoryview(self._memory_of_words.data)
        """The words of the host code; generated functions read sizes from them."""
        self.sizes: tuple[int, ...] | None = None
        """The input sizes and, last, the number of threads that the words are computed for."""
        self.arena = torch.empty(0, dtype=torch.uint8, device="cpu")
        self.flat: dict[torch.dtype, torch.Tensor] = {}
        self.tensors: dict[int, TorchValue] = {}
        self._checks = any(isinstance(s, LibraryCall) and s.expected for s in host.plan.steps)
        self._checked_kinds: set[tuple[int, ...]] = set()
        self.is_checked = not self._checks
        """Whether the results of library calls were checked for sizes of this kind."""

    @abstractmethod
    def _compute_sizes(self, sizes: tuple[int, ...]) -> None:
        """Store the sizes, and execute the host code up to where it depends on addresses."""

    @abstractmethod
    def _compute_addresses(self) -> None:
        """Execute the rest."""

    def bind(self, sizes: tuple[int, ...]) -> None:
        """Compute everything for other sizes, the last of which is the number of threads."""
        if torch.is_inference_mode_enabled():
            # Tensors made there could not be written to by later calls elsewhere.
            with torch.inference_mode(False), torch.no_grad():
                self.bind(sizes)
            return
        self.sizes = None
        host, words = self.host, self.words
        if host.code.in_python:
            pairs = zip(host.plan.symbols, sizes, strict=False)
            known = {symbol: size for (symbol, _, _), size in pairs}
            for index, expr in host.code.in_python:
                words[index] = int(size_evaluation.evaluate(expr, known))
        self._compute_sizes(sizes)
        self._take_memory(words[host.total.index])
        self._make_tensors(self)
        self._compute_addresses()
        if self._checks:
            self.is_checked = self._kind_of(sizes) in self._checked_kinds
        self.sizes = sizes

    def _take_memory(self, count: int) -> None:
        """Provide `count` bytes for temporaries."""
        have = self.arena.numel() - ALIGNMENT_BYTES
        if count > have or have > MAX_UNUSED_FACTOR * (count + ALIGNMENT_BYTES):
            if count > have > 0:
                count = grown(count, have)
            # Free the old memory first.
            self._free()
            self.set_memory(torch.empty(count + ALIGNMENT_BYTES, dtype=torch.uint8, device="cpu"))

    def give_back(self) -> None:
        """Free the memory; the next call computes everything again."""
        self.sizes = None
        self._free()

    def _free(self) -> None:
        self.arena, self.flat = torch.empty(0, dtype=torch.uint8, device="cpu"), {}
        self.tensors.clear()

    def set_memory(self, arena: torch.Tensor) -> None:
        self.arena = arena
        start = -arena.data_ptr() % ALIGNMENT_BYTES
        self._start = start
        self.words[self.host.base.index] = arena.data_ptr() + start

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The memory for temporaries as elements of one dtype."""
        found = self.flat.get(dtype)
        if found is None:
            usable = (self.arena.numel() - self._start) // ALIGNMENT_BYTES * ALIGNMENT_BYTES
            found = self.arena[self._start : self._start + usable].view(dtype)
            self.flat[dtype] = found
        return found

    def ints(self, values: Sequence[Size]) -> tuple[int, ...]:
        """Sizes that the plan expects of a library call's result."""
        assert self.sizes is not None
        known = {s: n for (s, _, _), n in zip(self.host.plan.symbols, self.sizes, strict=False)}
        return tuple(
            value if isinstance(value, int) else int(size_evaluation.evaluate(value, dict(known)))
            for value in values
        )

    def _kind_of(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Which axes are empty, or of one element: what library ops may treat differently."""
        return tuple([min(size, 2) for size in sizes[:-1]])

    def set_checked(self) -> None:
        """The results of library calls were as expected for these sizes."""
        assert self.sizes is not None
        self.is_checked = True
        self._checked_kinds.add(self._kind_of(self.sizes))
        if len(self._checked_kinds) == MAX_CHECKED_KINDS:
            self._checks = False


class NativeBinding(Binding):
    """Also the argument blocks of native kernels."""

    host: NativeHost

    def __init__(self, host: NativeHost, make_tensors: MakeTensors) -> None:
        super().__init__(host, make_tensors)
        base = self._memory_of_words.ctypes.data
        for index, to in host.code.addresses:
            self.words[index] = base + 8 * to
        self._code = np.array([*host.code.instructions, (0, 0, 0, 0)], dtype=np.int64)
        end = len(host.code.instructions)
        self._sizes_code = self._interpreted(0, host.sizes_end)
        self._addresses_code = self._interpreted(host.sizes_end, end)
        runs = [self._run_words(run) for run in host.runs]
        self._kept = [kept for _, kept in runs]
        self.runs = [self._runner(words.ctypes.data) for words, _ in runs]
        """Each run of kernels, given the tensors of a call or their addresses, and one number."""
        self._expected = words_of(base + 8 * host.expected)
        self.misfits = misfit_finder()(self._expected.ctypes.data) if takes_tensors() else None
        """Which inputs that kernels read have to be copied first, as a set of bits, given all."""

    def _interpreted(self, start: int, stop: int) -> tuple[Callable[..., int], Words]:
        """A callable that executes some instructions, and the words it depends on."""
        base, code = self._memory_of_words.ctypes.data, self._code.ctypes.data + 32 * start
        # The sizes are the first words, so that a call stores its arguments there.
        words = words_of(base, 0, base, code, stop - start)
        return interpreter()(words.ctypes.data), words

    def _compute_sizes(self, sizes: tuple[int, ...]) -> None:
        self._execute(self._sizes_code, *sizes)

    def _execute(self, code: tuple[Callable[..., int], Words], *sizes: int) -> None:
        run, _ = code
        if run(*sizes, 0):
            raise Undefined("a size is divided by zero, or does not fit into memory")

    def _compute_addresses(self) -> None:
        for slot, address in self.host.views.items():
            tensor = self.tensors[slot]
            self.words[address.index] = tensor.data_ptr() if isinstance(tensor, torch.Tensor) else 0
        self._execute(self._addresses_code)

    @abstractmethod
    def _runner(self, words: int) -> Callable[..., int]:
        """The run of kernels described by the words at an address (`callables.py`)."""

    def _run_words(self, run: HostRun) -> tuple[Words, tuple[Words, ...]]:
        """The words that describe a run, and all memory that has to stay for it."""
        table = np.zeros(run.call_slots + 1, dtype=np.int64)
        base = self._memory_of_words.ctypes.data
        places = [[base + 8 * index, source] for index, source in run.call_addresses]
        stores = np.array(places or [[0, 0]], dtype=np.int64)
        addresses = (stores.ctypes.data, len(places), table.ctypes.data)
        words = words_of(*addresses, base + 8 * run.first, run.steps)
        return words, (words, table, stores)


class PythonBinding(Binding):
    """A binding whose host code runs in Python."""

    def _compute_sizes(self, sizes: tuple[int, ...]) -> None:
        for place, size in enumerate(sizes):
            self.words[place] = size
        execute(self.host.code.instructions, self.words)

    def _compute_addresses(self) -> None:
        """There are none: kernels are given tensors."""
