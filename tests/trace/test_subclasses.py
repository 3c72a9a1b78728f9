from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.testing._internal.two_tensor import TwoTensor

import adjoint
from adjoint.graph.operations import build_subclass, take_attribute
from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.trace.subclasses import has_own_dispatch, inner_tensors, is_made_of_fakes
from tests.parity import ROUTES, Route, check, plain

Pair: TypeAlias = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=HashStore())
    yield DeviceMesh("cpu", [0])
    dist.destroy_process_group()


def world() -> Any:
    return dist.group.WORLD


def two(*shape: int) -> Tensor:
    return TwoTensor(plain(*shape), plain(*shape))


def nested(*shape: int) -> Tensor:
    return TwoTensor(two(*shape), two(*shape))


def computes(x: Tensor, y: Tensor) -> Any:
    return (x * y).sin().t(), (x @ y).sum()


def mutates(x: Tensor, y: Tensor) -> Any:
    x.mul_(2)
    return x + y, x


def mutates_through_a_view(x: Tensor, y: Tensor) -> Any:
    x.view(-1)[1:4].mul_(3)
    return x * y


def returns_views(x: Tensor, y: Tensor) -> Any:
    return x.view(-1), x * y, (x + 1).t()


def returns_two_views_of_one(x: Tensor, y: Tensor) -> Any:
    z = x * y
    return z.view(-1), z.t()


def mutates_the_other(x: Tensor, y: Tensor) -> Any:
    y.add_(1)
    return x * 2, y.view(-1)


FUNCTIONS = [
    computes,
    mutates,
    mutates_through_a_view,
    returns_views,
    returns_two_views_of_one,
    mutates_the_other,
]
INPUTS = {
    "two": lambda: (two(3, 3), two(3, 3)),
    "nested": lambda: (nested(3, 3), nested(3, 3)),
    "beside a plain tensor": lambda: (two(3, 3), plain(3, 3)),
    "after a plain tensor": lambda: (plain(3, 3), two(3, 3)),
    "leaf": lambda: (two(3, 3).requires_grad_(), two(3, 3).requires_grad_()),
    "grown": lambda: (two(3, 3).requires_grad_() * 1, two(3, 3).requires_grad_() * 1),
}


def is_legal(function: Any, inputs: str) -> bool:
    """Eager does not write to leaves, nor a subclass to a plain tensor."""
    writes = function in (mutates, mutates_through_a_view, mutates_the_other)
    return not (writes and inputs == "leaf") and not (
        function is mutates and inputs == "after a plain tensor"
    )


CASES = [(f, i) for f in FUNCTIONS for i in INPUTS if is_legal(f, i)]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("function", "inputs"), CASES)
def test_two_tensors_are_eagers(function: Any, inputs: str, route: Route) -> None:
    check(function, INPUTS[inputs], route)


# What AOTAutograd refuses -------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_a_mutated_duplicate_beside_a_subclass(route: Route) -> None:
    def program(x: Tensor, y: Tensor, z: Tensor) -> Any:
        y.add_(1)
        return x * z

    def same_twice() -> Any:
        y = plain(3, 3)
        return two(3, 3), y, y

    check(program, same_twice, route)


def test_a_mutated_duplicate_subclass() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return x * y

    def same_twice() -> Any:
        x = two(3, 3)
        return x, x

    check(program, same_twice, Route.DIRECT)


# Made and taken apart inside ----------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
def test_a_subclass_made_inside(grad: bool) -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        return TwoTensor(x * 2, y + 1).sin() * 2

    def make() -> Any:
        return plain(3).requires_grad_(grad), plain(3).requires_grad_(grad)

    check(program, make, Route.DIRECT)
    graph = adjoint.capture(program, *make()).graph_module.graph
    assert graph.find_nodes(op="call_function", target=build_subclass)


def test_a_subclass_taken_apart_inside() -> None:
    def program(x: Any, y: Tensor) -> Any:
        return x.a * y, x.b.sin()

    def make() -> Any:
        return two(3), plain(3)

    check(program, make, Route.DIRECT)
    graph = adjoint.capture(program, *make()).graph_module.graph
    assert graph.find_nodes(op="call_function", target=take_attribute)


def test_a_subclass_made_and_taken_apart_inside() -> None:
    def program(x: Tensor, y: Tensor) -> Any:
        pair: Any = TwoTensor(x * 2, y + 1) * 3
        return pair.a + pair.b

    check(program, lambda: (plain(3), plain(3)), Route.DIRECT)


# Distributed tensors ------------------------------------------------------------------------------


def redistributes(x: Any, y: Any) -> Any:
    return x.redistribute(x.device_mesh, [Replicate()]) * 2


def takes_the_local_part(x: Any, y: Any) -> Any:
    return x.to_local() * 2


def makes_one(x: Any, y: Any) -> Any:
    local = x.to_local() * y.to_local()
    return DTensor.from_local(local, x.device_mesh, [Shard(0)], run_check=False) + 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    "function",
    [computes, mutates, returns_views, redistributes, takes_the_local_part, makes_one],
)
def test_distributed_tensors_are_eagers(
    function: Any, grad: bool, route: Route, mesh: DeviceMesh
) -> None:
    def make() -> Any:
        shared = [distribute_tensor(plain(4, 4), mesh, [Shard(0)]) for _ in range(2)]
        leaves = [t.requires_grad_() if grad else t for t in shared]
        return tuple(t * 1 for t in leaves) if grad and function is mutates else tuple(leaves)

    check(function, make, route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 + 1,
        lambda x: collectives.all_reduce(x * 2, "sum", world()) + 1,
        lambda x: collectives.wait_tensor(x).sin(),
    ],
)
def test_asynchronous_collectives_are_eagers(function: Any, route: Route, mesh: DeviceMesh) -> None:
    def make() -> Any:
        return (collectives.all_reduce(plain(4, 4), "sum", world()),)

    assert isinstance(make()[0], collectives.AsyncCollectiveTensor)
    check(function, make, route)


# What the module says of subclasses ---------------------------------------------------------------


def test_inner_tensors() -> None:
    tensor: Any = two(3)
    assert inner_tensors(tensor) == {"a": tensor.a, "b": tensor.b}


def test_made_of_fakes() -> None:
    mode = new_fake_mode()
    assert is_made_of_fakes(make_fake(mode, plain(3), False, "x"), mode)
    assert is_made_of_fakes(make_fake(mode, nested(3), False, "x"), mode)
    assert not is_made_of_fakes(plain(3), mode)
    assert not is_made_of_fakes(nested(3), mode)
    assert not is_made_of_fakes(3, mode)
    assert not is_made_of_fakes(make_fake(new_fake_mode(), plain(3), False, "x"), mode)


def test_what_sees_operators_itself() -> None:
    fake = make_fake(new_fake_mode(), plain(3), False, "x")
    assert not has_own_dispatch(plain(3))
    assert not has_own_dispatch(nested(3))
    assert has_own_dispatch(fake)
    assert has_own_dispatch(TwoTensor(fake, fake))
