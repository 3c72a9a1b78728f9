"""The transforms, with `torch.func`'s signatures where the two overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from adjoint.open_types import TorchValue, UserFunction
from adjoint.torch_private import trees
from adjoint.trace.tracer import current_tracer
from adjoint.transforms import contract
from adjoint.transforms.arguments import ChosenArguments
from adjoint.transforms.compiled import (
    FAILURES,
    Compiled,
    OptionMapping,
    Setting,
    in_torch,
    is_left_to_torch,
    is_traced,
    linearized,
)
from adjoint.transforms.contract import ArgNums
from adjoint.transforms.fingerprint import Fingerprint
from adjoint.transforms.linear import Linearized
from adjoint.transforms.linear_programs import PullBack, PushForward
from adjoint.transforms.table import programs_of


def grad(
    function: UserFunction,
    argnums: ArgNums = 0,
    has_aux: bool = False,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> UserFunction:
    """The gradient of a scalar function, in the form of the arguments `argnums`.

    All transforms take `dynamic` and `options`.  `dynamic` says which sizes are symbols, for all
    values of which one program is compiled.  True: all, from the first call on; False: none; None:
    those that have changed between calls.  `options` are those of
    `torch.compile(backend="adjoint", options=...)`.

        >>> import torch, adjoint
        >>> adjoint.grad(lambda x: x.square().sum())(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """

    def gradient(*args: object, **kwargs: object) -> object:
        value, gradients = _value_and_grad(function, argnums, has_aux, args, kwargs)
        return (gradients, value[1]) if has_aux else gradients

    traced = torch.func.grad(function, argnums, has_aux)
    key = ("grad", argnums, has_aux)
    return Compiled(key, gradient, function, traced, setting=Setting(dynamic, options))


def value_and_grad(
    function: Callable[..., object],
    argnums: ArgNums = 0,
    has_aux: bool = False,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> UserFunction:
    """The value of a scalar function (or (value, aux)), then its gradient.

    >>> import torch, adjoint
    >>> adjoint.value_and_grad(lambda x: x.square().sum())(torch.tensor([1.0, 2.0]))
    (tensor(5.), tensor([2., 4.]))
    """

    def both(*args: object, **kwargs: object) -> object:
        return _value_and_grad(function, argnums, has_aux, args, kwargs)

    def traced(*args: object, **kwargs: object) -> object:
        found = torch.func.grad_and_value(function, argnums, has_aux)(*args, **kwargs)
        return found[1], found[0]

    key = ("value_and_grad", argnums, has_aux)
    return Compiled(key, both, function, traced, setting=Setting(dynamic, options))


def _value_and_grad(
    function: Callable[..., object],
    argnums: ArgNums,
    has_aux: bool,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[TorchValue, TorchValue]:
    chosen = ChosenArguments.named(args, argnums)
    point = linearized(chosen.of(function, kwargs), chosen.leaves)
    value = contract.scalar(contract.parts(point.value, has_aux, "grad_and_value(f)(*args)")[0])
    cotangents: list[torch.Tensor | None] = [None] * len(point.results)
    cotangents[0] = torch.ones_like(value)
    return point.value, chosen.packed(point.pull_back(cotangents))


def vjp(
    function: Callable[..., object],
    *primals: object,
    has_aux: bool = False,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> TorchValue:
    """The value at `primals`, and the function from cotangents of it to cotangents of `primals`.

    With `has_aux`, the function returns (value, aux), and aux comes last here.

        >>> import torch, adjoint
        >>> value, pull = adjoint.vjp(lambda x: x * 3, torch.ones(2))
        >>> pull(torch.tensor([1.0, 2.0]))
        (tensor([3., 6.]),)
    """
    if is_traced() or (current_tracer() is None and is_left_to_torch()):
        return torch.func.vjp(function, *primals, has_aux=has_aux)
    return _vjp(function, primals, has_aux, Setting(dynamic, options))


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _vjp(
    function: Callable[..., object], primals: tuple[object, ...], has_aux: bool, setting: Setting
) -> object:
    def at(primals: tuple[object, ...]) -> Linearized:
        chosen = ChosenArguments(primals)
        return linearized(chosen.of(function, {}), chosen.leaves)

    def value_of(returned: object) -> object:
        value, _ = contract.parts(returned, has_aux, contract.VJP)
        contract.check_differentiable(contract.tensors(value, contract.VJP)[0])
        return value

    chosen = ChosenArguments(primals)
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
    def vjp_fn(
        cotangents: object, retain_graph: bool = True, create_graph: bool | None = None
    ) -> object:
        given = contract.cotangents_of(results, form, cotangents)
        recorded = torch.is_grad_enabled() if create_graph is None else create_graph
        with torch.set_grad_enabled(recorded):
            return chosen.packed(pull_back([*given, *([None] * others)]))

    return (value, vjp_fn, aux) if has_aux else (value, vjp_fn)


def jvp(
    function: Callable[..., object],
    primals: tuple[object, ...],
    tangents: tuple[object, ...],
    *,
    strict: bool = False,
    has_aux: bool = False,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> TorchValue:
    """The value at `primals`, and its directional derivative along `tangents`.

    `strict`: a result that does not depend on the primals is an error.

        >>> import torch, adjoint
        >>> adjoint.jvp(lambda x: x * x, (torch.tensor(3.0),), (torch.tensor(1.0),))
        (tensor(9.), tensor(6.))
    """
    contract.check_is_tuple(primals)

    def both(primals: tuple[object, ...], tangents: tuple[object, ...]) -> object:
        chosen = ChosenArguments.along(primals, tangents)
        point = linearized(chosen.of(function, {}), chosen.leaves, forward=True)
        value, aux = contract.parts(point.value, has_aux, contract.JVP)
        results, form = contract.tensors(value, contract.JVP)
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
    function: Callable[..., object],
    *primals: object,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> TorchValue:
    """The value at `primals`, and the function from tangents to the derivative along them.

    The function is run once, whatever the number of tangents.

        >>> import torch, adjoint
        >>> value, push = adjoint.linearize(lambda x: x * x, torch.tensor(3.0))
        >>> push(torch.tensor(1.0)), push(torch.tensor(10.0))
        (tensor(6.), tensor(60.))
    """
    if is_traced() or (current_tracer() is None and is_left_to_torch()):
        return _linearize_in_torch(function, primals)
    return _linearize(function, primals, Setting(dynamic, options))


def _linearize_in_torch(function: Callable[..., object], primals: tuple[object, ...]) -> object:
    """By `torch.func.jvp`, because `torch.func.linearize` does not nest in other transforms."""
    leaves, form = trees.flatten(primals)

    def jvp_fn(*tangents: object) -> object:
        contract.matching_tangents(leaves, form, tangents)
        return torch.func.jvp(function, primals, tangents)[1]

    return function(*primals), jvp_fn


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _linearize(
    function: Callable[..., object], primals: tuple[object, ...], setting: Setting
) -> object:
    def at(primals: tuple[object, ...]) -> Linearized:
        chosen = ChosenArguments(primals)
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
    def jvp_fn(*tangents: object) -> object:
        pushed = iter(push_forward(contract.matching_tangents(leaves, form, tangents)))
        filled = [next(pushed) if isinstance(each, torch.Tensor) else each for each in found]
        return trees.unflatten(filled, spec)

    return value, jvp_fn


def hvp(
    function: Callable[..., object],
    primals: tuple[object, ...],
    tangents: tuple[object, ...],
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> TorchValue:
    """The value of a scalar function, and its Hessian at `primals` applied to `tangents`.

    >>> import torch, adjoint
    >>> x, v = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    >>> adjoint.hvp(lambda x: (x**3).sum(), (x,), (v,))
    (tensor(9.), (tensor([6., 0.]),))
    """
    contract.check_is_tuple(primals)
    argnums = tuple(range(len(primals)))

    def both(primals: tuple[object, ...], tangents: tuple[object, ...]) -> object:
        def gradients(*args: object) -> object:
            return _value_and_grad(function, argnums, False, args, {})

        chosen = ChosenArguments.along(primals, tangents)
        point = linearized(chosen.of(gradients, {}), chosen.leaves, forward=True)
        pushed = point.push_forward(chosen.tangents)
        return point.value[0], chosen.packed(pushed[1:])

    def traced(primals: object, tangents: object) -> object:
        gradients = torch.func.grad_and_value(function, argnums)
        (_, value), (product, _) = torch.func.jvp(gradients, primals, tangents)[:2]
        return value, product

    return Compiled("hvp", both, function, traced, setting=Setting(dynamic, options))(
        primals, tangents
    )


def vmap(
    function: Callable[..., object],
    in_dims: int | tuple[object, ...] = 0,
    out_dims: int | tuple[int, ...] | None = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> UserFunction:
    """`function` for each element of a batch, in one program.

    >>> import torch, adjoint
    >>> adjoint.vmap(lambda x: x.sum())(torch.ones(2, 3))
    tensor([3., 3.])
    """
    batched = torch.func.vmap(
        function, in_dims, out_dims, randomness=randomness, chunk_size=chunk_size
    )
    form, dims = trees.leaves_and_structure((in_dims, out_dims))
    key = ("vmap", str(form), str(dims), randomness, chunk_size)
    return Compiled(key, batched, function, batched, setting=Setting(dynamic, options))
