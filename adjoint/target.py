"""Targets: what code is generated for, as frozen data.

A target has a device, a mapping of loops onto the machine, instructions, libraries, nominal rates
and a loader.  It is chosen once for a graph (`targets.py`) and passed down.  Stages read its
properties, such as `tiles_rows`, and never compare its device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

CPU = torch.device("cpu")
NVPTX = "nvptx64-nvidia-cuda"


class LoopMapping(Enum):
    """How the `parallel` and `vector` loops of a kernel are mapped onto the machine."""

    THREADS = "threads"
    """Parallel loops are divided among a few threads, vector loops among SIMD lanes."""
    GRID = "grid"
    """A team of threads, from one thread to a block, runs each iteration of the parallel loop;
    vector loops are divided among the team."""


class Loader(Enum):
    """How a plan is loaded and run."""

    LLVM = "llvm"
    """Machine code for this process."""
    CUDA = "cuda"
    """PTX that the driver assembles and launches."""
    EVALUATOR = "evaluator"
    """Kernels run in plain Python, loop by loop."""
    EAGER = "eager"
    """There are no plans: graphs run op by op in eager torch."""


class Feature(Enum):
    BLAS = "blas"
    """Native code can call a library that multiplies matrices, or some rows of them."""
    VECTOR_ATOMICS = "vector atomics"
    """One instruction adds four neighbouring float32 numbers to memory."""


@dataclass(frozen=True)
class Machine:
    """The instruction set that LLVM generates code for, in LLVM's names."""

    triple: str
    cpu: str
    features: str = ""

    @property
    def attributes(self) -> str:
        """The LLVM attributes that every function needs."""
        # LLVM prefers 256-bit vectors on some CPUs that have 512-bit ones, which suits short loops;
        # ours are long.  On CPUs with narrower registers the attribute has no effect.
        return '"prefer-vector-width"="512"' if self.triple.startswith("x86_64") else ""

    @property
    def vector_bytes(self) -> int:
        """The bytes of the widest vector register that the features imply."""
        features = {*self.features.split(",")}
        if "+avx512f" in features or self.cpu == "x86-64-v4":
            return 64
        return 32 if "+avx" in features or self.cpu == "x86-64-v3" else 16


@dataclass(frozen=True)
class Rates:
    """Nominal peak rates, which decisions compare; a particular machine may not reach them."""

    bytes_per_second: float
    operators_per_second: float

    @property
    def operators_per_byte(self) -> int:
        """Operators that take as long as one byte of memory traffic."""
        return max(1, round(self.operators_per_second / self.bytes_per_second))


PROCESSOR_RATES = Rates(2e10, 2e11)
GPU_RATES = Rates(2e12, 2e13)


@dataclass(frozen=True)
class Target:
    name: str
    device: torch.device
    """The device of the tensors that kernels read and write."""
    loader: Loader
    mapping: LoopMapping = LoopMapping.THREADS
    machine: Machine | None = None
    """None: no machine code is generated."""
    features: frozenset[Feature] = frozenset()
    rates: Rates = PROCESSOR_RATES
    draws_in_kernels: bool = False
    """Random numbers come from a counter-based generator inside kernels, not from torch's."""
    captures_cuda_graphs: bool = False
    """Launches that repeat are captured once and replayed as a CUDA graph."""

    @property
    def has_kernels(self) -> bool:
        return self.loader is not Loader.EAGER

    @property
    def has_grid(self) -> bool:
        return self.mapping is LoopMapping.GRID

    @property
    def has_native_products(self) -> bool:
        """Whether native code calls a BLAS for matrix products, without going through torch."""
        return Feature.BLAS in self.features and not self.has_grid

    @property
    def tiles_rows(self) -> bool:
        """Whether kernels and matrix products over the same rows run together, tile by tile."""
        return self.has_native_products

    @property
    def writes_in_place(self) -> bool:
        """Whether new values of inputs may be stored in the inputs themselves, and those of other
        tensors in their memory.

        Not on a GPU: a CUDA graph lays out all results itself.
        """
        return not self.has_grid

    @property
    def convolves_into_memory(self) -> bool:
        """Whether the library can store the result of a convolution in memory that it is given."""
        return self.has_grid

    @property
    def has_product_kernels(self) -> bool:
        """Whether products with narrow matrices are kernels, so that neighbours fuse with them."""
        return self.has_grid

    @property
    def is_memory_bound(self) -> bool:
        """Whether kernels are memory-bound: recomputing a value is cheaper than loading it."""
        return self.has_grid

    @property
    def shares_memory(self) -> bool:
        """Whether programs that run one after the other have their temporaries in the same memory,
        and results in memory that others may have next."""
        return self.has_grid

    @property
    def checks_indices_in_kernels(self) -> bool:
        """Whether the thread that loads an index checks it, and not a step before the kernel."""
        return self.has_grid

    @property
    def scatters_in_order(self) -> bool:
        """Whether a scatter adds to each element in the same order in every run."""
        return not self.has_grid

    @property
    def divides_halves_as_eager(self) -> bool:
        """Whether rounded quotients of half-precision numbers are eager's.  Eager on a GPU rounds
        at steps where our kernels do not."""
        return not self.has_grid

    @property
    def has_vector_atomics(self) -> bool:
        return Feature.VECTOR_ATOMICS in self.features


def cpu_target(
    machine: Machine | None = None, has_blas: bool = False, draws_in_kernels: bool = False
) -> Target:
    """Native code for a CPU."""
    return Target(
        "cpu",
        CPU,
        Loader.LLVM,
        machine=machine,
        features=frozenset({Feature.BLAS} if has_blas else ()),
        draws_in_kernels=draws_in_kernels,
    )


def cuda_target(
    device: torch.device,
    capability: tuple[int, int],
    draws_in_kernels: bool = True,
    captures_cuda_graphs: bool = True,
) -> Target:
    """Native code for an NVIDIA GPU of a compute capability."""
    major, minor = capability
    return Target(
        "cuda",
        device,
        Loader.CUDA,
        LoopMapping.GRID,
        # The first version of PTX that has vector atomics.
        Machine(NVPTX, f"sm_{major}{minor}", "+ptx81" if capability == (9, 0) else ""),
        frozenset({Feature.VECTOR_ATOMICS} if capability >= (9, 0) else ()),
        GPU_RATES,
        draws_in_kernels,
        captures_cuda_graphs,
    )


def loops_target(draws_in_kernels: bool = False) -> Target:
    """No machine code: the loop evaluator runs the kernels of a CPU."""
    return Target("loops", CPU, Loader.EVALUATOR, draws_in_kernels=draws_in_kernels)


REFERENCE = Target("reference", CPU, Loader.EAGER)
