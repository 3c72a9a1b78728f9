"""A script that shows a difference with as few ops as possible, and no model around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import fx

from adjoint.graph.metadata import value_or_none
from adjoint.open_types import TorchValue

# Tensors with more elements are random in the script, in the range of the data.
MAX_LITERAL_ELEMENTS = 24

_SCRIPT = '''"""adjoint and eager torch differ: made by `adjoint check`."""

import torch

import adjoint  # noqa: F401

torch.manual_seed(0)
INPUTS = [
{inputs}
]


def f({parameters}):
{body}
    return {results}


{run}


for found, expected in zip(run(torch.compile(f, backend="adjoint")), run(f), strict=True):
    print("adjoint:", found.flatten()[:6].tolist())
    print("eager:  ", expected.flatten()[:6].tolist())
    torch.testing.assert_close(found, expected)
'''

_RESULTS = """\
def run(function):
    return function(*[x.clone() for x in INPUTS])"""

_GRADIENTS = """\
def run(function):
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in INPUTS]
    total = sum(x.sum() for x in function(*inputs) if x.requires_grad)
    wrt = [x for x in inputs if x.requires_grad]
    return torch.autograd.grad(total, wrt, materialize_grads=True)"""


def of_nodes(
    nodes: Sequence[fx.Node],
    values: Mapping[fx.Node, TorchValue],
    graph_module: fx.GraphModule,
    gradients: bool = False,
) -> str:
    """The script of some nodes of a graph; empty if it cannot be written.

    `values`: of the nodes of the graph, where they were kept.
    """
    chosen = [node for node in graph_module.graph.nodes if node in set(nodes)]
    outside = dict.fromkeys(
        each for node in chosen for each in node.all_input_nodes if each not in chosen
    )
    known = {node: values.get(node, value_or_none(node)) for node in outside}
    if not chosen or not all(isinstance(each, torch.Tensor) for each in known.values()):
        return ""
    names = {node: f"x{place}" for place, node in enumerate(outside)}
    lines: list[str] = []
    for node in chosen:
        names[node] = node.name
        args = [_written(each, names) for each in node.args]
        args += [f"{key}={_written(each, names)}" for key, each in node.kwargs.items()]
        lines.append(f"    {node.name} = {_callee(node)}({', '.join(args)})")
    used = {each for node in chosen for each in node.all_input_nodes}
    results = [node.name for node in chosen if node not in used] or [chosen[-1].name]
    return _SCRIPT.format(
        parameters=", ".join(names[node] for node in outside),
        body="\n".join(lines),
        results=", ".join(results) + ",",
        run=_GRADIENTS if gradients else _RESULTS,
        inputs="\n".join(f"    {_tensor(known[node])}," for node in outside),
    )


def _callee(node: fx.Node) -> str:
    name = str(node.target)
    if node.op == "call_function" and name.count(".") == 2:
        return f"torch.ops.{name}"
    return "(lambda x, i: x[i])" if "getitem" in name else name


def _written(value: object, names: Mapping[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return names[value]
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_written(each, names) for each in value)
        return f"[{inner}]"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    return repr(value)


def _tensor(tensor: torch.Tensor) -> str:
    tensor, dtype = tensor.detach(), str(tensor.dtype)
    shape = [int(each) for each in tensor.shape]
    device = "" if tensor.device.type == "cpu" else f", device={str(tensor.device)!r}"
    is_fake = type(tensor) is not torch.Tensor
    if not is_fake and tensor.numel() <= MAX_LITERAL_ELEMENTS:
        return f"torch.tensor({tensor.cpu().tolist()}, dtype={dtype}{device})"
    if tensor.dtype == torch.bool:
        return f"torch.rand({shape}{device}) < 0.5"
    if not tensor.is_floating_point():
        bounds = "0, 1" if is_fake else f"{int(tensor.min())}, {int(tensor.max()) + 1}"
        return f"torch.randint({bounds}, {shape}, dtype={dtype}{device})"
    if is_fake:
        return f"torch.randn({shape}, dtype={dtype}{device})"
    low, high = float(tensor.min()), float(tensor.max())
    spread = f"* {high - low:.6g} + {low:.6g}"
    return f"torch.rand({shape}, dtype={dtype}{device}) {spread}"
