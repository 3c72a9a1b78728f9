"""Storages, the tensors that show them, and what a write through one means for the others.

A traced tensor is a window on a *storage*.  A storage has a tree of *aliases*: each is a view of
its parent, and the root's value is always current.  A write through an alias is carried up to the
root as a new value of each base (`select` becomes `select_scatter`, and so on); every other alias
is stale from then on, and is derived from its parent again when it is next read.

Autograd adds one thing.  The aliases that are differentiable views of one another form a *family*
and share a history; `detach` and `.data` start a family of their own.  Data flows between families
of a storage, history does not: what a family receives from another one, or from a write under
`no_grad`, is new data under its old history, which the graph says as `with_data(history, data)`.

**Invariant.** Facts about autograd (is it a view, does it require grad) are read off the traced
tensors, on which torch's own autograd ran; nothing here predicts them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from torch import fx

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode
from adjoint.graph.operations import with_data
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.modes import above_autograd
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.emission import Emitter
from adjoint.trace.views import ViewStep, has_internal_overlap, undo

RECORDED = Mode(grad_enabled=True)
UNRECORDED = Mode(grad_enabled=False)


class Link(Enum):
    """Whether an alias has its parent's history."""

    AUTOGRAD = auto()
    """As autograd says of its tensor: a differentiable view has."""
    FAMILY = auto()
    """It has: a tensor that `t_` made a view of what it was, a base without a tensor."""
    FOREIGN = auto()
    """It has its own: an input that shares memory with others, but is no view of theirs."""


@dataclass(eq=False)
class Storage:
    """Memory that tensors of the traced program share."""

    writes: int = 0
    aliases: list[Alias] = field(default_factory=list)
    is_placed: bool = False
    """The program counted from where the memory begins, not from where a tensor does."""
    open: Callable[[], None] | None = None
    """Lets all memory that an input lies in be the root, which the caller has not passed."""


@dataclass(eq=False)
class Alias:
    """One window on a storage, and the node that has its value as of write number `stamp`."""

    storage: Storage
    tensor: torch.Tensor | None
    """The traced tensor; None for bases that the program has no tensor for."""
    parent: Alias | None = None
    step: ViewStep | None = None
    node: fx.Node | None = None
    make_node: Callable[[], fx.Node] | None = None
    """Makes the node when it is first wanted."""
    stamp: int = 0
    link: Link = Link.AUTOGRAD
    dtype: torch.dtype | None = None
    """Of memory that has no tensor of the program."""
    flat: Alias | None = None
    """The memory of this family in its own order, once something needed it so."""
    is_hidden: bool = False
    """The base of an input that the caller did not pass; the graph has no value for it."""
    is_input: bool = False
    """The caller has this tensor."""
    written: bool = False
    """Changed through this alias or one derived from it, but not through a derived input."""
    moved_from: Alias | None = None
    """What the tensor showed before an op (`t_`, `as_strided_`, ...) made it show this."""
    moved_by: OpOverload | None = None
    reaches_out_of: Alias | None = None
    """What this is a differentiable view of, though it shows more of the memory."""
    former: torch.Tensor | None = None
    """The tensor as it was while it showed this window, once it shows another."""

    def __post_init__(self) -> None:
        self.stamp = self.storage.writes
        self.memory = None if self.tensor is None else storage_key(self.tensor)
        # Autograd gives a new view the counter of its base only after this.
        counters = (each.tensor for each in self.ancestors() if each is not self)
        counter = next((each for each in counters if each is not None), self.tensor)
        self.version = 0 if counter is None else version(counter)
        self.storage.aliases.append(self)

    @property
    def place(self) -> torch.Tensor | None:
        """A tensor that shows this window; facts about autograd are those of `tensor`."""
        return self.tensor if self.former is None else self.former

    @property
    def starts_family(self) -> bool:
        """No history comes from the parent."""
        if self.parent is None or self.link is Link.FOREIGN:
            return True
        if self.link is Link.FAMILY:
            return False
        return self.tensor is not None and not self.tensor._is_view()

    @property
    def is_derived_anew(self) -> bool:
        """Autograd looks at this view's base again: it was written to since the view was made."""
        return self.tensor is not None and version(self.tensor) != self.version

    @property
    def has_history(self) -> bool:
        """Autograd would record what happens to this tensor."""
        if self.tensor is None:
            return False
        try:
            with above_autograd():
                return self.tensor.requires_grad
        except RuntimeError:
            return True  # A view that autograd refuses to derive anew: an error if it is used.

    @property
    def gradient_edge(self) -> tuple[Any, int] | None:
        """Where autograd sends the gradient of this tensor, if it was computed from others."""
        if self.tensor is None:
            return None
        with above_autograd(), contextlib.suppress(RuntimeError):
            if self.tensor.grad_fn is not None:
                return (self.tensor.grad_fn, self.tensor.output_nr)
        return None

    def ancestors(self) -> Iterator[Alias]:
        """This alias, what it is a view of, and so on to the root."""
        alias: Alias | None = self
        while alias is not None:
            yield alias
            alias = alias.parent

    def origins(self) -> Iterator[Alias]:
        """This alias, what it was made of (its tensor's former window, if it moved), and so on."""
        alias: Alias | None = self
        while alias is not None:
            yield alias
            alias = alias.moved_from or alias.parent


def version(tensor: torch.Tensor) -> int:
    """How often the memory of `tensor` was written to, as far as torch counts."""
    return 0 if tensor.is_inference() else tensor._version


def read(emitter: Emitter, alias: Alias) -> fx.Node:
    """The node with the current value of `alias`."""
    if alias.is_hidden:
        raise CaptureError(
            "the base of a view", "only the view was passed", "pass the base", emitter.source()
        )
    if alias.node is None and alias.make_node is not None:
        alias.node = alias.make_node()
    if alias.parent is None or (alias.node is not None and alias.stamp == alias.storage.writes):
        assert alias.node is not None
        return alias.node
    assert alias.step is not None
    viewed = read(emitter, alias.parent)
    if not alias.starts_family:
        # Autograd derives a view anew once its base has changed, whatever mode it was made in.
        recorded = alias.tensor is None or alias.gradient_edge is not None
        alias.node = alias.step.emit(emitter, viewed, RECORDED if recorded else UNRECORDED)
    else:
        data = _data_of(emitter, alias, viewed)
        alias.node = _under_history(emitter, alias, alias.node, data)
    alias.stamp = alias.storage.writes
    return alias.node


def write(emitter: Emitter, alias: Alias, new: fx.Node, mode: Mode) -> None:
    """Make `new` the value of `alias`, computed under `mode`."""
    chain = list(alias.ancestors())
    if any(each.reaches_out_of is not None for each in alias.storage.aliases):
        raise CaptureError(
            "a write",
            "its memory is shown by an as_strided beyond the tensor that gradients flow to",
            "write to a clone(), or pass the tensor that owns the memory",
            emitter.source(),
        )
    before = [read(emitter, each) for each in chain]
    recorded = mode.grad_enabled and not mode.inference
    quiet = Mode(grad_enabled=False, inference=mode.inference)
    lowest = _first_that_repeats_nothing(emitter, chain, recorded)
    alias.storage.writes += 1
    through_input = False
    for position, each in enumerate(chain):
        each.written |= not through_input
        through_input |= each.is_input
        if position < lowest:
            continue  # It is derived anew when it is read.
        if position > 0:
            if recorded and chain[position - 1].starts_family:
                new = emitter.call(torch.ops.aten.detach.default, (new,), mode=quiet)
                recorded = False
            lower = chain[:lowest] if position == lowest else chain[position - 1 : position]
            steps = [each.step for each in reversed(lower) if each.step is not None]
            new = undo(emitter, steps, before[position], new, mode if recorded else quiet)
        if recorded:
            each.node, each.stamp = new, each.storage.writes
        elif each.starts_family:
            # What goes on upwards is the data alone: a history stays with its family.
            each.node = _under_history(emitter, each, before[position], new)
            each.stamp = each.storage.writes
        elif not _family_has_history(each):
            each.node, each.stamp = new, each.storage.writes


def _first_that_repeats_nothing(emitter: Emitter, chain: Sequence[Alias], recorded: bool) -> int:
    """The place in `chain` above all views that show an element more than once."""
    repeat = [a.place is not None and has_internal_overlap(a.place) for a in chain]
    if not any(repeat):
        return 0
    lowest = len(chain) - repeat[::-1].index(True)
    if lowest == len(chain) or (recorded and any(a.starts_family for a in chain[:lowest])):
        raise CaptureError(
            "a write",
            "the tensor is a part of one in which several elements lie in one place",
            "write to the tensor that was expanded, or to a clone()",
            emitter.source(),
        )
    return lowest


def _data_of(emitter: Emitter, alias: Alias, viewed: fx.Node) -> fx.Node:
    assert alias.step is not None
    assert alias.parent is not None
    if _family_has_history(alias.parent):
        # A view that is made without grad still is a view of what requires grad.
        viewed = emitter.call(torch.ops.aten.detach.default, (viewed,), mode=UNRECORDED)
    return alias.step.emit(emitter, viewed, UNRECORDED)


def _under_history(
    emitter: Emitter, alias: Alias, history: fx.Node | None, data: fx.Node
) -> fx.Node:
    if history is None or not alias.has_history:
        return data
    return emitter.call(with_data, (history, data), mode=RECORDED, value=data.meta["val"])


def _family_has_history(alias: Alias) -> bool:
    root = next(each for each in alias.ancestors() if each.starts_family)
    return root.has_history
