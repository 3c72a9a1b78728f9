"""The transforms, with `torch.func`'s signatures where the two overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.torch_private import trees
from adjoint.trace.tracer import current_tracer
from adjoint.transforms import contract
from adjoint.transforms.compiled import (
    FAILURES,
    Compiled,
    OptionMapping,
    PullBack,
    PushForward,
    Setting,
    in_torch,
    is_left_to_torch,
    is_traced,
    linearized,
)
from adjoint.transforms.contract import ArgNums
from adjoint.transforms.fingerprint import Fingerprint
from adjoint.transforms.linear import Linearized
from adjoint.transforms.table import programs_of

Function = Callable[..., Any]


def grad(
    function: Function,
    argnums: ArgNums = 0,
    has_aux: bool = False,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Function:
    """The gradient of a scalar function, in the form of the arguments `argnums`.

    `dynamic`, here and in all transforms: whether one program is for all sizes from the first call
    on, or never; None: from the second value that a size has.  `options`, too: those of
    `torch.compile(backend="adjoint", options=...)`.
    """

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = _value_and_grad(function, argnums, has_aux, args, kwargs)
        return (gradients, value[1]) if has_aux else gradients

    traced = torch.func.grad(function, argnums, has_aux)
    key = ("grad", argnums, has_aux)
    return Compiled(key, gradient, function, traced, setting=Setting(dynamic, options))


def value_and_grad(
    function: Function,
    argnums: ArgNums = 0,
    has_aux: bool = False,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Function:
    """The value of a scalar function (or (value, aux)), then its gradient."""

    def both(*args: Any, **kwargs: Any) -> Any:
        return _value_and_grad(function, argnums, has_aux, args, kwargs)

    def traced(*args: Any, **kwargs: Any) -> Any:
        found = torch.func.grad_and_value(function, argnums, has_aux)(*args, **kwargs)
        return found[1], found[0]

    key = ("value_and_grad", argnums, has_aux)
    return Compiled(key, both, function, traced, setting=Setting(dynamic, options))


def _value_and_grad(
    function: Function, argnums: ArgNums, has_aux: bool, args: Any, kwargs: Any
) -> tuple[Any, Any]:
    chosen = _Chosen.named(args, argnums)
    point = linearized(chosen.of(function, kwargs), chosen.leaves)
    value = contract.scalar(contract.parts(point.value, has_aux, "grad_and_value(f)(*args)")[0])
    cotangents: list[torch.Tensor | None] = [None] * len(point.results)
    cotangents[0] = torch.ones_like(value)
    return point.value, chosen.packed(point.pull_back(cotangents))


def vjp(
    function: Function,
    *primals: Any,
    has_aux: bool = False,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Any:
    """The value at `primals`, and the function from cotangents of it to cotangents of `primals`.

    With `has_aux`, the function returns (value, aux), and aux comes last here.
    """
    if is_traced() or (current_tracer() is None and is_left_to_torch()):
        return torch.func.vjp(function, *primals, has_aux=has_aux)
    return _vjp(function, primals, has_aux, Setting(dynamic, options))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _vjp(function: Function, primals: tuple[Any, ...], has_aux: bool, setting: Setting) -> Any:
    def at(primals: tuple[Any, ...]) -> Linearized:
        chosen = _Chosen(primals)
        return linearized(chosen.of(function, {}), chosen.leaves)

    def value_of(returned: Any) -> Any:
        value, _ = contract.parts(returned, has_aux, _VJP)
        contract.check_differentiable(contract.tensors(value, _VJP)[0])
        return value

    chosen = _Chosen(primals)
    if current_tracer() is not None:
        point = at(primals)
        returned, pull_back = point.value, point.pull_back
    else:
        make = functools.partial(PullBack, setting.compiler, at, value_of)
        try:
            look = Fingerprint(function)
            programs = programs_of(("vjp", has_aux, setting), look, function)
            program, call = programs.find(make, look, primals, {}, setting.dynamic)
        except FAILURES as error:
            of_torch = functools.partial(torch.func.vjp, function, *primals, has_aux=has_aux)
            return in_torch(function, error, of_torch)
        returned, pull_back = program(call)
    value, aux = (value_of(returned), returned[1]) if has_aux else (value_of(returned), None)
    results, form = trees.flatten(value)
    others = len(trees.leaves(aux)) if has_aux else 0

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def vjp_fn(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        given = contract.cotangents_of(results, form, cotangents)
        recorded = torch.is_grad_enabled() if create_graph is None else create_graph
        with torch.set_grad_enabled(recorded):
            return chosen.packed(pull_back([*given, *([None] * others)]))

    return (value, vjp_fn, aux) if has_aux else (value, vjp_fn)


_VJP = "vjp(f, *primals)"
_JVP = "jvp(f, primals, tangents)"


def jvp(
    function: Function,
    primals: Any,
    tangents: Any,
    *,
    strict: bool = False,
    has_aux: bool = False,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Any:
    """The value at `primals`, and its directional derivative along `tangents`.

    `strict`: a result that does not depend on the primals is an error.
    """
    contract.check_is_tuple(primals)

    def both(primals: Any, tangents: Any) -> Any:
        chosen = _Chosen.along(primals, tangents)
        point = linearized(chosen.of(function, {}), chosen.leaves, forward=True)
        value, aux = contract.parts(point.value, has_aux, _JVP)
        results, form = contract.tensors(value, _JVP)
        if strict and not {*range(len(results))} <= {*point.differentiable}:
            raise RuntimeError(
                "jvp(f, primals, tangents, strict=True): The output of f is independent of the "
                "inputs. This is not allowed with strict=True."
            )
        pushed = point.push_forward(chosen.tangents)
        along = trees.unflatten(pushed[: len(results)], form)
        return (value, along, aux) if has_aux else (value, along)

    key = ("jvp", strict, has_aux)
    traced = functools.partial(torch.func.jvp, function, strict=strict, has_aux=has_aux)
    return Compiled(key, both, function, traced, setting=Setting(dynamic, options))(
        primals, tangents
    )


def linearize(
    function: Function, *primals: Any, dynamic: bool | None = None, options: OptionMapping = None
) -> Any:
    """The value at `primals`, and the function from tangents to the derivative along them.

    The function is run once, whatever the number of tangents.
    """
    if is_traced() or (current_tracer() is None and is_left_to_torch()):
        return _linearize_in_torch(function, primals)
    return _linearize(function, primals, Setting(dynamic, options))


def _linearize_in_torch(function: Function, primals: tuple[Any, ...]) -> Any:
    """With `torch.func.jvp`: `torch.func.linearize` takes no part in other transforms."""
    leaves, form = trees.flatten(primals)

    def jvp_fn(*tangents: Any) -> Any:
        contract.matching_tangents(leaves, form, tangents)
        return torch.func.jvp(function, primals, tangents)[1]

    return function(*primals), jvp_fn


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _linearize(function: Function, primals: tuple[Any, ...], setting: Setting) -> Any:
    def at(primals: tuple[Any, ...]) -> Linearized:
        chosen = _Chosen(primals)
        return linearized(chosen.of(function, {}), chosen.leaves, forward=True)

    leaves, form = trees.flatten(primals)
    if current_tracer() is not None:
        point = at(primals)
        value, push_forward = point.value, point.push_forward
    else:
        make = functools.partial(PushForward, setting.compiler, at)
        try:
            look = Fingerprint(function)
            programs = programs_of(("linearize", setting), look, function)
            program, call = programs.find(make, look, primals, {}, setting.dynamic)
        except FAILURES as error:
            return in_torch(function, error, lambda: _linearize_in_torch(function, primals))
        value, push_forward = program(call)
    found, spec = trees.flatten(value)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def jvp_fn(*tangents: Any) -> Any:
        pushed = iter(push_forward(contract.matching_tangents(leaves, form, tangents)))
        filled = [next(pushed) if isinstance(each, torch.Tensor) else each for each in found]
        return trees.unflatten(filled, spec)

    return value, jvp_fn


def hvp(
    function: Function,
    primals: Any,
    tangents: Any,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Any:
    """The value of a scalar function, and its Hessian at `primals` applied to `tangents`."""
    contract.check_is_tuple(primals)
    argnums = tuple(range(len(primals)))

    def both(primals: Any, tangents: Any) -> Any:
        def gradients(*args: Any) -> Any:
            return _value_and_grad(function, argnums, False, args, {})

        chosen = _Chosen.along(primals, tangents)
        point = linearized(chosen.of(gradients, {}), chosen.leaves, forward=True)
        pushed = point.push_forward(chosen.tangents)
        return point.value[0], chosen.packed(pushed[1:])

    def traced(primals: Any, tangents: Any) -> Any:
        gradients = torch.func.grad_and_value(function, argnums)
        both: Any = torch.func.jvp(gradients, primals, tangents)
        (_, value), (product, _) = both
        return value, product

    return Compiled("hvp", both, function, traced, setting=Setting(dynamic, options))(
        primals, tangents
    )


def jacrev(
    function: Function,
    argnums: ArgNums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Function:
    """The Jacobian, by rows; `chunk_size` of them at a time."""
    contract.check_chunk_size("jacrev", chunk_size)

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        contract.check_real(args, "jacrev", "inputs")
        chosen = _Chosen.named(args, argnums)
        point = linearized(chosen.of(function, kwargs), chosen.leaves)
        value, aux = contract.parts(point.value, has_aux, _VJP)
        results, form = contract.tensors(value, _VJP)
        contract.check_differentiable(results)
        contract.check_real(results, "jacrev", "outputs")
        rows: list[Any] = []
        for place, result in enumerate(results):

            def row(cotangent: torch.Tensor, place: int = place) -> tuple[torch.Tensor, ...]:
                cotangents: list[torch.Tensor | None] = [None] * len(point.results)
                cotangents[place] = cotangent
                return tuple(point.pull_back(cotangents))

            shapes = [(*result.shape, *leaf.shape) for leaf in chosen.leaves]
            if result.numel() == 0:
                parts = [leaf.new_zeros(s) for leaf, s in zip(chosen.leaves, shapes, strict=True)]
            else:
                stacked = torch.func.vmap(row, chunk_size=chunk_size)(_basis(result))
                parts = [each.view(shape) for each, shape in zip(stacked, shapes, strict=True)]
            rows.append(chosen.packed(parts))
        packed = trees.unflatten(rows, form)
        return (packed, aux) if has_aux else packed

    def in_torch(*args: Any, **kwargs: Any) -> Any:
        given = functools.partial(function, **kwargs) if kwargs else function
        rows = torch.func.jacrev(given, argnums, has_aux=has_aux, chunk_size=chunk_size)
        return rows(*args)

    traced = torch.func.jacrev(function, argnums, has_aux=has_aux, chunk_size=chunk_size)
    key = ("jacrev", argnums, has_aux, chunk_size)
    return Compiled(
        key, jacobian, function, traced, in_torch=in_torch, setting=Setting(dynamic, options)
    )


def jacfwd(
    function: Function,
    argnums: ArgNums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Function:
    """The Jacobian, by columns.

    `randomness`: whether the function may draw random numbers (not if "error"), and whether each
    column has its own ("different") or all have the same.
    """

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        contract.check_real(args, "jacfwd", "inputs")
        chosen = _Chosen.named(args, argnums)
        point = linearized(chosen.of(function, kwargs), chosen.leaves, forward=True)
        value, aux = contract.parts(point.value, has_aux, _JVP)
        results, form = contract.tensors(value, _JVP)
        contract.check_real(results, "jacfwd", "outputs")
        if randomness == "error" and point.draws:
            raise RuntimeError(
                "jacfwd: called random operation while in randomness error mode. Please either "
                "use the 'same' or 'different' randomness flags"
            )
        columns: list[list[torch.Tensor]] = [[] for _ in results]
        for place, leaf in enumerate(chosen.leaves):

            def column(tangent: torch.Tensor, place: int = place) -> tuple[torch.Tensor, ...]:
                tangents = [torch.zeros_like(each) for each in chosen.leaves]
                tangents[place] = tangent
                return tuple(point.push_forward(tangents)[: len(results)])

            shapes = [(*result.shape, *leaf.shape) for result in results]
            if leaf.numel() == 0:
                parts = [each.new_zeros(s) for each, s in zip(results, shapes, strict=True)]
            else:
                stacked = torch.func.vmap(column)(_basis(leaf))
                pairs = zip(stacked, shapes, strict=True)
                parts = [each.movedim(0, -1).reshape(shape) for each, shape in pairs]
            for into, part in zip(columns, parts, strict=True):
                into.append(part)
        packed = trees.unflatten([chosen.packed(parts) for parts in columns], form)
        return (packed, aux) if has_aux else packed

    def in_torch(*args: Any, **kwargs: Any) -> Any:
        given = functools.partial(function, **kwargs) if kwargs else function
        return torch.func.jacfwd(given, argnums, has_aux, randomness=randomness)(*args)

    if randomness == "different":
        return torch.func.jacfwd(function, argnums, has_aux, randomness=randomness)
    # By rows: torch's forward mode does not run on fake tensors under more than one `vmap`.
    traced = torch.func.jacrev(function, argnums, has_aux=has_aux)
    key = ("jacfwd", argnums, has_aux, randomness)
    return Compiled(
        key, jacobian, function, traced, in_torch=in_torch, setting=Setting(dynamic, options)
    )


def hessian(
    function: Function,
    argnums: ArgNums = 0,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Function:
    """The matrix of second derivatives."""
    return jacfwd(jacrev(function, argnums), argnums, dynamic=dynamic, options=options)


def vmap(
    function: Function,
    in_dims: Any = 0,
    out_dims: Any = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> Function:
    """`function` for each element of a batch, in one program."""
    batched = torch.func.vmap(
        function, in_dims, out_dims, randomness=randomness, chunk_size=chunk_size
    )
    form, dims = trees.leaves_and_structure((in_dims, out_dims))
    key = ("vmap", str(form), str(dims), randomness, chunk_size)
    return Compiled(key, batched, function, batched, setting=Setting(dynamic, options))


class _Chosen:
    """The arguments that a transform is with respect to."""

    def __init__(self, args: tuple[Any, ...], places: Sequence[int] | None = None) -> None:
        """`places`: None for all."""
        self.args = args
        self.single = False
        self.places = range(len(args)) if places is None else places
        chosen = tuple(args[place] for place in self.places)
        self.leaves, self.form = trees.flatten(chosen)
        self.tangents: list[torch.Tensor] = []
        contract.check_primals(self.leaves)

    @classmethod
    def named(cls, args: tuple[Any, ...], argnums: ArgNums) -> _Chosen:
        """Those that the user asked for."""
        chosen = cls(args, contract.places_of(argnums, len(args)))
        chosen.single = isinstance(argnums, int)
        return chosen

    @classmethod
    def along(cls, primals: tuple[Any, ...], tangents: Any) -> _Chosen:
        """All of `primals`, with a tangent for each leaf."""
        leaves, form = trees.flatten(primals)
        along = contract.tangents_of(leaves, form, tangents)
        chosen = cls(primals)
        chosen.tangents = along
        return chosen

    def of(self, function: Function, kwargs: dict[str, Any]) -> Function:
        """`function` of the chosen leaves alone."""

        def on_leaves(*leaves: torch.Tensor) -> Any:
            args = list(self.args)
            for place, value in zip(
                self.places, trees.unflatten(list(leaves), self.form), strict=True
            ):
                args[place] = value
            return function(*args, **kwargs)

        return on_leaves

    def packed(self, leaves: Sequence[Any]) -> Any:
        """`leaves` in the form of the chosen arguments."""
        packed = trees.unflatten(list(leaves), self.form)
        return packed[0] if self.single else packed


def _basis(like: torch.Tensor) -> torch.Tensor:
    size = like.numel()
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.view((size, *like.shape))
