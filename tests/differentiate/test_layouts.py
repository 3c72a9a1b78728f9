"""Ops and modules of torch on tensors of unusual layouts, against eager: two orders in float64.

torch's own samples are dense.  Here each tensor of a sample, parameters included, is laid out anew
with the same values: the layouts of the random programs (`random_layouts.py`) that keep values.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree

from tests.differentiate.test_opinfo import (
    EXCEPTIONS,
    LONG,
    READS_DATA,
    SAMPLES,
    call,
    name_of,
    ops_of,
    unseeded,
)
from tests.differentiation import Function, Through, check, derivatives, leaves_like
from tests.random_layouts import LAYOUTS

pytestmark = pytest.mark.filterwarnings("ignore")

# One op or module of so many is looked at in each run of the tests; `make test-all` looks at all.
OPS_SHARD, MODULES_SHARD = 48, 16

KEEP_VALUES = ("channels last", "turned", "swapped", "strided", "offset", "negative", "conjugate")

# Modules that read data in Python, which only graph breaks allow.
MODULES_THAT_READ = {"nn.BatchNorm1d", "nn.BatchNorm2d", "nn.BatchNorm3d", "nn.GaussianNLLLoss"}

# Their gradients are sparse tensors, which have no layout.
SPARSE = {"sparse.sampled_addmm", "sparse.mm.reduce", "to_sparse"}


def laid_out(leaf: Any, key: str) -> Any:
    """The tensor in a layout that is drawn by `key`."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or not leaf.dim():
        return leaf
    names = KEEP_VALUES if leaf.is_floating_point() or leaf.is_complex() else KEEP_VALUES[:5]
    drawn = names[zlib.crc32(key.encode()) % len(names)]
    return LAYOUTS[drawn](leaf.detach()).requires_grad_(leaf.requires_grad)


def _sharded(names: list[str], shard: int) -> list[Any]:
    return [
        pytest.param(n, id=name, marks=[] if n % shard == 5 else [pytest.mark.slow])
        for n, name in enumerate(names)
    ]


OPS = [op for op in ops_of(torch.float64) if name_of(op) not in EXCEPTIONS.keys() | LONG | SPARSE]


@pytest.mark.parametrize("number", _sharded([name_of(op) for op in OPS], OPS_SHARD))
def test_ops(number: int) -> None:
    op = OPS[number]
    name = name_of(op)
    torch.manual_seed(0)
    through = Through.DYNAMO if name in READS_DATA else Through.BRIDGE
    seen = []
    for which, sample in enumerate(
        itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=True), SAMPLES)
    ):
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        leaves = [laid_out(leaf, f"{name} {which} {n}") for n, leaf in enumerate(leaves)]
        places = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
        function = functools.partial(call, op, sample, spec, leaves, places)
        with unseeded():
            seen.append(compared(function, [leaves[place] for place in places], through))
    skip_unless(seen)


def compared(function: Function, inputs: list[torch.Tensor], through: Through) -> bool:
    """Compare with eager, if it has a value and a derivative; whether it has: some of its formulas
    are `view`s that such a tensor does not have."""
    try:
        refused = derivatives(function, leaves_like(inputs), 1).error is not None
    except RuntimeError:
        refused = True
    if refused:
        return False

    def of_dense(*tensors: torch.Tensor) -> Any:
        return function(*(x.clone(memory_format=torch.contiguous_format) for x in tensors))

    try:
        check(function, inputs, 2, through=through)
    except AssertionError:
        # Eager itself is wrong for some, such as a batch norm of a negative view.
        check(function, inputs, 2, through=through, oracle=of_dense)
    return True


def skip_unless(compared: list[bool]) -> None:
    if not any(compared):
        pytest.skip("eager has no value or no derivative of any sample in these layouts")


def _modules(info: Any) -> Iterator[tuple[torch.nn.Module, Any]]:
    for training in (True, False):
        given = {"device": "cpu", "dtype": torch.float64, "requires_grad": True}
        for sample in info.module_inputs_func(info, training=training, **given)[:SAMPLES]:
            if sample.forward_input is None:
                continue
            made = sample.constructor_input
            torch.manual_seed(1)
            module = info.module_cls(*made.args, **made.kwargs).double()
            yield module.train(training), sample.forward_input


# The second derivative of a whole transformer takes many minutes; lazy modules have no parameters.
MODULES = [
    info
    for info in module_db
    if info.name != "nn.Transformer" and not info.module_cls.__name__.startswith("Lazy")
]


@pytest.mark.parametrize("number", _sharded([info.name for info in MODULES], MODULES_SHARD))
def test_modules(number: int) -> None:
    info = MODULES[number]
    through = Through.DYNAMO if info.name in MODULES_THAT_READ else Through.BRIDGE
    seen = []
    for which, (module, given) in enumerate(_modules(info)):
        parameters = dict(module.named_parameters())
        leaves, spec = _pytree.tree_flatten((parameters, given.args, given.kwargs))
        leaves = [laid_out(leaf, f"{info.name} {which} {n}") for n, leaf in enumerate(leaves)]
        places = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor)]

        def called(
            *tensors: torch.Tensor,
            of: torch.nn.Module = module,
            leaves: list[Any] = leaves,
            places: list[int] = places,
            spec: Any = spec,
        ) -> Any:
            filled = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            state, args, kwargs = _pytree.tree_unflatten(filled, spec)
            # A batch norm writes to its buffers, so each call has its own.
            state |= {name: buffer.clone() for name, buffer in of.named_buffers()}
            return torch.func.functional_call(of, state, args, kwargs)

        seen.append(compared(called, [leaves[place] for place in places], through))
    skip_unless(seen)


def test_a_copy_of_a_window_has_a_history() -> None:
    """Also where positions in memory are not those of a contiguous tensor."""
    x = LAYOUTS["turned"](torch.randn(3, 3, dtype=torch.float64)).requires_grad_()
    found = check(lambda x: torch.as_strided_copy(x, (2, 2), (1, 2)).sin(), [x], 2)
    assert found.orders[1][0] is not None
    assert found.orders[1][0].any()
