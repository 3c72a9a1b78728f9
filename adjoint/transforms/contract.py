"""What `torch.func` accepts, converts and refuses, so that the transforms here do the same.

Errors are of the types that `torch.func` raises, and say the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from adjoint.open_types import TorchValue
from adjoint.torch_private import trees

ArgNums = int | tuple[int, ...]

# Transforms as torch's errors name them.
VJP = "vjp(f, *primals)"
JVP = "jvp(f, primals, tangents)"


def places_of(argnums: ArgNums, count: int) -> tuple[int, ...]:
    """The places among `count` arguments that `argnums` names, counted from the first."""
    if not isinstance(argnums, (int, tuple)):
        raise RuntimeError(f"argnums must be int or Tuple[int, ...], got: {type(argnums)}")
    given = argnums if isinstance(argnums, tuple) else (argnums,)
    for place in given:
        if not isinstance(place, int):
            raise RuntimeError(f"argnum must be int, got: {type(place)}")
        if not -count <= place < count:
            raise RuntimeError(f"Got argnum={place}, but only {count} positional inputs")
    if not given:
        raise RuntimeError("argnums must be non-empty")
    places = tuple(int(place) % count for place in given)
    if len(set(places)) != len(places):
        raise RuntimeError(f"argnums elements must be unique, got {places}")
    return places


def check_primals(leaves: Sequence[object]) -> None:
    """Refuse inputs that cannot be differentiated with respect to."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise ValueError(f"Thing passed to transform API must be Tensor, got {type(leaf)}")
        if not is_real_or_complex(leaf):
            raise RuntimeError(
                "only Tensors of floating point and complex dtype can require gradients, "
                f"got {leaf.dtype}"
            )


def is_real_or_complex(value: torch.Tensor) -> bool:
    """Whether the dtype has derivatives: floating-point or complex."""
    return value.is_floating_point() or value.is_complex()


def check_is_tuple(primals: object) -> None:
    """Refuse the primals of a jvp that are no tuple."""
    if not isinstance(primals, tuple):
        raise RuntimeError(
            "jvp(f, primals, tangents): Expected primals to be a tuple. "
            "E.g. it should be valid to call f(*primals)."
        )


def parts(returned: object, has_aux: bool, transform: str) -> tuple[object, object]:
    """What a function returned, as (value, aux)."""
    if not has_aux:
        return returned, None
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise RuntimeError(
            f"{transform}: output of function f should be a tuple: (output, aux) if has_aux is True"
        )
    for leaf in trees.leaves(returned[1]):
        if not isinstance(leaf, torch.Tensor):
            raise RuntimeError(f"Expected tensors, got unsupported type {type(leaf)}")
    return returned


def scalar(value: object) -> torch.Tensor:
    """The value of a function whose gradient is asked for: a scalar tensor, or an error."""
    name = "grad_and_value(f)(*args)"
    if not isinstance(value, torch.Tensor):
        raise RuntimeError(f"{name}: Expected f(*args) to return a Tensor, got {type(value)}")
    if value.dim() != 0:
        raise RuntimeError(
            f"{name}: Expected f(*args) to return a scalar Tensor, got tensor with "
            f"{value.dim()} dims. Maybe you wanted to use the vjp or jacrev APIs instead?"
        )
    if value.is_complex():
        raise RuntimeError(
            f"grad can be implicitly created only for real scalar outputs but got {value.dtype}"
        )
    return value


def tensors(value: object, transform: str) -> tuple[list[torch.Tensor], trees.TreeSpec]:
    """The leaves of what a function returned, which are to be tensors, and their form."""
    leaves, form = trees.flatten(value)
    if not leaves or leaves == [None]:
        raise RuntimeError(
            f"{transform}: Expected f to be a function that has non-empty output "
            f"(got output = {leaves})"
        )
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise RuntimeError(
                f"{transform}: expected f(*primals) to return only tensors, "
                f"got unsupported type {type(leaf)}"
            )
    return leaves, form


def check_differentiable(results: Sequence[torch.Tensor]) -> None:
    """Refuse results that have no cotangents."""
    for result in results:
        if not is_real_or_complex(result):
            raise RuntimeError(
                "vjp(f, ...): All outputs of f must be floating-point or complex Tensors, "
                f"got Tensor with dtype {result.dtype}"
            )


def check_real(values: object, transform: str, kind: str) -> None:
    """Refuse complex tensors, for which "the Jacobian" is ambiguous."""
    for place, leaf in enumerate(trees.leaves(values)):
        if isinstance(leaf, torch.Tensor) and leaf.is_complex():
            raise RuntimeError(
                f"{transform}: Expected all {kind} to be real but received complex tensor "
                f"at flattened input idx: {place}"
            )


def check_chunk_size(transform: str, chunk_size: int | None) -> None:
    """Refuse a chunk size that is not positive."""
    if not (chunk_size is None or chunk_size > 0):
        raise ValueError(f"{transform}: `chunk_size` should be greater than 0, got {chunk_size}.")


def _leaves_of(given: object, form: trees.TreeSpec, refusal: str) -> list[TorchValue]:
    """The leaves of a tree of this form; `refusal`: what is said of another."""
    leaves, spec = trees.flatten(given)
    if spec != form:
        raise RuntimeError(refusal.format(given=spec, expected=form))
    return leaves


def cotangents_of(
    results: Sequence[torch.Tensor], form: trees.TreeSpec, given: object
) -> list[torch.Tensor]:
    """The cotangents `given` of `results`, as autograd would take them."""
    leaves = _leaves_of(
        given,
        form,
        "Expected pytree structure of cotangents to be the same as pytree structure of "
        "outputs to the function. cotangents: {given}, primal output: {expected}",
    )
    pairs = zip(results, leaves, strict=True)
    return [_cotangent(result, leaf, place) for place, (result, leaf) in enumerate(pairs)]


def _cotangent(result: torch.Tensor, given: object, place: int) -> torch.Tensor:
    if given is None:
        if result.numel() != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return torch.ones_like(result)
    if not isinstance(given, torch.Tensor):
        raise TypeError(f"gradients can be either Tensors or None, but got {type(given).__name__}")
    if given.shape != result.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{place}] has a shape of {given.shape} "
            f"and output[{place}] has a shape of {result.shape}."
        )
    if given.is_complex() != result.is_complex():
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same "
            f"dtype. Mismatch in dtype: grad_output[{place}] has a dtype of {given.dtype} "
            f"and output[{place}] has a dtype of {result.dtype}."
        )
    if given.device != result.device and given.dim() > 0:
        raise RuntimeError(
            f"invalid gradient at index {place} - "
            f"expected device {result.device} but got {given.device}"
        )
    return _like(given, result)


def tangents_of(
    primals: Sequence[TorchValue], form: trees.TreeSpec, given: object
) -> list[torch.Tensor]:
    """The tangents `given` of `primals`, as torch's forward mode would take them."""
    name = "jvp(f, primals, tangents)"
    leaves = _leaves_of(
        given,
        form,
        f"{name}: Expected primals and tangents to have the same python structure. "
        "For example, if primals is a tuple of 3 tensors, tangents also must be. "
        "Got primals with structure {expected} and tangents with structure {given}",
    )
    for kind, each in (("primals", primals), ("tangents", leaves)):
        if not each:
            raise RuntimeError(f"{name}: Expected {kind} to contain at least one Tensor.")
        for leaf in each:
            if not isinstance(leaf, torch.Tensor):
                raise RuntimeError(
                    f"{name}: Expected {kind} to only contain Tensors, got {type(leaf)}"
                )
            if not is_real_or_complex(leaf):
                raise ValueError(
                    f"Expected {kind[:-1]} to be floating point or complex, but got: {leaf.dtype}"
                )
    return [_tangent(*pair) for pair in zip(primals, leaves, strict=True)]


def matching_tangents(
    primals: Sequence[torch.Tensor], form: trees.TreeSpec, given: object
) -> list[torch.Tensor]:
    """The tangents `given` of `primals`; other dtypes or shapes are refused, not converted."""
    refusal = "Expected the tangents {given} to have the same argspec as the primals {expected}"
    leaves = _leaves_of(given, form, refusal)
    for place, (primal, leaf) in enumerate(zip(primals, leaves, strict=True)):
        for name in ("shape", "device", "dtype"):
            if getattr(leaf, name, None) != getattr(primal, name):
                raise RuntimeError(
                    f"tangent:{place} with {name} {getattr(leaf, name, None)} in flattened pytree "
                    f"doesn't match the {name} {getattr(primal, name)} of the corresponding primal."
                )
    return leaves


def _tangent(primal: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    if given.shape != primal.shape:
        raise RuntimeError(
            "Trying to set a forward gradient that has a different size than that of the "
            f"original Tensor, this is not supported. Tensor is of size {list(primal.shape)} "
            f"while the given forward gradient is of size {list(given.shape)}."
        )
    if given.device != primal.device:
        raise RuntimeError(
            f"Tensor on device {given.device} is not on the expected device {primal.device}!"
        )
    return _like(given, primal)


def _like(given: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """`given` with the dtype and on the device of `like`."""
    dense = given if given.layout == like.layout else given.to_dense()
    return dense if dense.dtype == like.dtype and dense.device == like.device else dense.to(like)
