"""Dynamo's graphs as text: the cache key of a capture.

Such a text is not read back.  It contains everything that capture may look at: the calls, by the
names of torch's functions, the kind of each input, and which nodes share a line of the user's.  A
graph with something that has no text - functions of the user's, tensors that it closes over, inputs
that share memory, subclasses - is unwritable, and its capture is not cached.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

import torch
from torch import fx

from adjoint.forms.form import Tree, Unwritable
from adjoint.forms.graphs import GraphWriting, Ground, attribute_of
from adjoint.forms.vocabulary import KNOWN_NAMESPACES
from adjoint.source import line_of_stack_trace, user_line
from adjoint.torch_private.fake import FakeTensor, FakeTensorMode, storage_key
from adjoint.torch_private.functions import method_is_torchs, name_of
from adjoint.torch_private.functorch import functorch_is_active
from adjoint.torch_private.modes import has_torch_function_mode, isolated
from adjoint.torch_private.operators import OpOverload, OpOverloadPacket

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class DynamoGround(Ground):
    """A graph of Dynamo's and its inputs: the ground of a captured program."""

    def __init__(
        self,
        graph_module: fx.GraphModule,
        fake_mode: FakeTensorMode,
        inputs: Sequence[tuple[object, object, object]],
    ) -> None:
        """`inputs`: for each the value that is passed, its fake, and its descriptor."""
        self.graph_module = graph_module
        self.inputs = inputs
        self._symbolic = []
        self._mode = fake_mode
        self.origins, self.runs = {}, {0: 0}
        self.lines = {}
        for module in graph_module.modules():
            for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
                line = line_of_stack_trace(node.stack_trace)
                if line is not None:
                    self.lines.setdefault(line, len(self.lines))
        # Modules of torch's have no line of the user's: their ops are those of the line that calls.
        caller = user_line()
        if caller is not None:
            self.lines.setdefault(caller, len(self.lines))

    guards_are_checked = True

    @property
    def fakes(self) -> list[FakeTensor]:
        """None: a captured program has fake values of its own."""
        return []

    @property
    def fake_mode(self) -> FakeTensorMode:
        return self._mode

    @functools.cached_property
    def text(self) -> str:
        """The text of the graph and its inputs; raises `Unwritable`."""
        if functorch_is_active() or has_torch_function_mode():
            raise Unwritable("a capture inside a transform of torch.func or a function mode")
        writing = DynamoWriting(self)
        with isolated():
            inputs = [writing.input(*each) for each in self.inputs]
            tree = writing.graph(self.graph_module)
        self._symbolic = writing.symbolic
        return json.dumps([inputs, tree, self.sizes()], separators=(",", ":"))


class DynamoWriting(GraphWriting):
    """Writes a graph of Dynamo's."""

    def __init__(self, ground: DynamoGround) -> None:
        super().__init__(ground)
        self._storages: set[object] = set()

    def input(self, example: object, value: object, descriptor: object) -> Tree:
        """One of the inputs: everything that the program can observe of it."""
        if not isinstance(value, torch.Tensor):
            return [self.tree(value), self.tree(descriptor)]
        if type(example) not in _PLAIN or type(value) is not FakeTensor:
            raise Unwritable(f"an input that is a {type(example).__name__}")
        memory = storage_key(value)
        if memory in self._storages:
            raise Unwritable("inputs that share memory")
        self._storages.add(memory)
        base = value._base if value._is_view() else None
        return [
            type(example).__name__,
            self.tree(descriptor),
            self._tensor(value),
            None if base is None else self._tensor(base),
            self.tree(getattr(value, "item_memo", None)),
        ]

    def _tensor(self, value: torch.Tensor) -> Tree:
        return [
            str(value.dtype),
            *self._layout(value),
            self._size(value.untyped_storage().nbytes()),
            [value.requires_grad, value.is_leaf, value.grad_fn is None, value.is_inference()],
        ]

    def special(self, value: object) -> Tree | None:
        match value:
            case OpOverload():
                self._require_known(value.namespace)
                return None
            case OpOverloadPacket():
                name = str(value)
                self._require_known(name.partition(".")[0])
                return ["packet", name]
            case torch.Tensor():
                raise Unwritable("a tensor that a graph closes over")
            case _ if value is Ellipsis:
                return ["ellipsis"]
            case _:
                if callable(value) and not isinstance(value, fx.Node | fx.GraphModule):
                    return self._function(value)
                return super().special(value)

    def _require_known(self, namespace: str) -> None:
        if namespace not in KNOWN_NAMESPACES:
            raise Unwritable(f"an operator of {namespace}")

    def _function(self, function: Callable[..., object]) -> Tree:
        name = name_of(function)
        if name is None:
            raise Unwritable(f"the function {function}")
        return ["function", name]

    def _node(self, node: fx.Node) -> Tree:
        if node.op == "call_module":
            raise Unwritable("a module that a graph calls")
        if node.op == "call_method" and not method_is_torchs(str(node.target)):
            raise Unwritable(f"a method {node.target}")
        line = line_of_stack_trace(node.stack_trace)
        return [
            node.op,
            node.name,
            self.tree(node.target),
            ["tuple", *map(self.tree, node.args)],
            self.tree(dict(node.kwargs)),
            -1 if line is None else self._lines[line],
        ]

    def _whole(self, graph_module: fx.GraphModule) -> list[Tree]:
        return []

    def _held(self, graph_module: fx.GraphModule, name: str) -> Tree:
        return self.tree(attribute_of(graph_module, name))
