"""What a user may ask of the compiler: one frozen dataclass, passed down the pipeline.

Nothing else configures a compilation. There is no global configuration and no environment variable,
so a compilation is a function of its arguments alone. (An environment variable may say where
compiled programs are kept; what they compute does not depend on it.)
"""

from __future__ import annotations

import difflib
import os
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Literal, Union, get_args, get_origin, get_type_hints

from adjoint.passes import Pass


@dataclass(frozen=True)
class Options:
    """The choices of one compilation. An illegal value cannot be constructed.

    >>> import adjoint
    >>> adjoint.Options(target="loops").target
    'loops'
    """

    target: Literal["native", "loops", "reference"] = "native"
    """What runs the graph. `native`: fused native kernels, on the device where the tensors are;
    `loops`: the same kernels on the CPU, interpreted in plain Python; `reference`: eager torch, op
    by op."""

    unsupported: Literal["raise", "eager"] = "raise"
    """What happens to code that cannot be captured or differentiated: `raise` an error, or run it
    in `eager` torch."""

    cuda_graphs: bool = True
    """Whether repeated calls on a GPU replay a CUDA graph, when all tensor addresses match the
    captured ones.  A result that another stream reads must stay referenced until that stream is
    done: `record_stream` is not enough."""

    eager_rng: bool | None = None
    """True: random numbers are those of eager, bit for bit.  False: they come from a counter-based
    generator inside kernels (Philox), seeded by torch's.  None: True on the CPU, False on a GPU.
    Ops that run op by op always draw eager's numbers."""

    memory_budget: int | float | str | None = None
    """How much memory a program and its backward may allocate together at any time, besides their
    arguments: bytes (an integer, or a text such as "4GiB"), or a fraction of what saving everything
    would take (a float up to 1.0).  What does not fit is recomputed, in as little time as possible.
    None: values are recomputed only where that is about as fast as saving them."""

    passes: tuple[Pass, ...] = ()
    """The user's own passes (`adjoint.graph_pass`), each run at the place that it declares."""

    skip_passes: tuple[str, ...] = ()
    """The names of passes that do not run (`adjoint passes` lists them)."""

    check: Literal["first-call", "every"] | None = None
    """Whether eager torch runs beside the compiled program, forward and backward at each order, and
    a difference that rounding does not explain raises `MismatchError`: at the `first-call` of each
    program, or at `every` call."""

    verify: bool = False
    """Whether every graph is verified after each stage and pass that made it."""

    progress: bool = True
    """Whether a compilation that takes more than two seconds reports progress on a terminal."""

    cache: str | bool | None = True
    """Where compiled programs are cached for later processes.  True: in the user's cache folder, or
    as the environment variable `ADJOINT_CACHE` says; a path: in that folder; False or None:
    nowhere."""

    cache_limit: int | str = 1 << 30
    """The bytes of all cache entries (an integer, or a text such as "4GiB"); what was used
    longest ago is removed first."""

    def __post_init__(self) -> None:
        for name, annotation in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if name in _READERS:
                object.__setattr__(self, name, _READERS[name](value))
                continue
            legal = _legal_values(annotation)
            if not any(_same(value, choice) for choice in legal):
                choices = ", ".join(map(repr, legal))
                raise ValueError(f"option {name}={value!r} is not legal; choose from: {choices}")

    @classmethod
    def parse(cls, options: Mapping[str, object] | Options | None) -> Options:
        """Read options as a user gives them, as in `torch.compile(f, options=options)`."""
        mapping = options_given(options)
        names = [field.name for field in fields(cls)]
        for name in mapping:
            if name not in names:
                raise ValueError(_unknown_name(str(name), names))
        return cls(**mapping)  # type: ignore[arg-type]


def options_given(options: object) -> dict[str, object]:
    """Options as a user gives them: a mapping, `Options` or None."""
    if isinstance(options, Options):
        return dict(vars(options))
    if options is None or isinstance(options, Mapping):
        return dict(options or {})
    raise ValueError(
        f"options={options!r} is not legal; they are a mapping such as {{'verify': True}}"
    )


def _passes(value: object) -> tuple[Pass, ...]:
    passes = tuple(value) if isinstance(value, tuple | list) else (value,)
    for each in passes:
        if not isinstance(each, Pass):
            raise ValueError(
                f"option passes has {each!r}; it takes a sequence of what adjoint.graph_pass makes"
            )
    return passes


def _names(value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, tuple | list | set | frozenset) else (value,)
    for each in names:
        if not isinstance(each, str):
            raise ValueError(f"option skip_passes has {each!r}; it takes names of passes")
    return names


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DECIMAL_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def _amount(value: object) -> int | float | None:
    """A number, or the bytes that a text such as "4GiB" means; None: it is neither."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(iB|B|)\s*", value)
        if found is None:
            return None
        units = _DECIMAL_UNITS if found[2] and found[3] == "B" else _UNITS
        return int(float(found[1]) * units[found[2]])
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _budget(value: object) -> int | float | None:
    """A memory budget in bytes, or as a fraction."""
    bytes_ = _amount(value)
    if value is None or (isinstance(bytes_, int) and bytes_ > 0):
        return bytes_
    if isinstance(bytes_, float) and 0 < bytes_ <= 1:
        return bytes_
    raise ValueError(
        f"option memory_budget={value!r} is not legal; choose a number of bytes, such as "
        '4 * 2**30 or "4GiB", or a fraction of what saving everything takes, such as 0.5'
    )


def _cache(value: object) -> str | bool:
    """The folder of the cache, or whether there is one."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return str(os.fspath(value))
    raise ValueError(f"option cache={value!r} is not legal; choose a folder, True, False or None")


def _cache_limit(value: object) -> int:
    bytes_ = _amount(value)
    if isinstance(bytes_, int) and bytes_ > 0:
        return bytes_
    raise ValueError(
        f"option cache_limit={value!r} is not legal; choose a number of bytes, such as 2**30 or "
        '"1GiB"'
    )


# Options whose values are not a closed list: each is read by a function of its own.
_READERS: dict[str, Callable[[object], object]] = {
    "cache": _cache,
    "cache_limit": _cache_limit,
    "memory_budget": _budget,
    "passes": _passes,
    "skip_passes": _names,
}


def _legal_values(annotation: object) -> tuple[object, ...]:
    """Every value of a closed type: Literal, bool, None, or a union of these."""
    if annotation is bool:
        return (True, False)
    if annotation is type(None):
        return (None,)
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(value for member in get_args(annotation) for value in _legal_values(member))
    raise TypeError(f"an option of type {annotation} has no list of legal values")


def _same(value: object, choice: object) -> bool:
    """Whether two values are equal and of one type: 1 is not True."""
    return type(value) is type(choice) and value == choice


def _unknown_name(name: str, names: list[str]) -> str:
    closest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {closest[0]!r}? " if closest else ""
    return f"unknown option {name!r}; {hint}the options are: {', '.join(names)}"
