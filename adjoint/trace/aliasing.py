"""The alias model: storages, the tensors that alias them, and the effect of a write on each.

Each *storage* has a tree of *aliases*.  An alias is a view of its parent, and the value of the root
is always current.  A write through an alias becomes a new value of each of its ancestors (`select`
becomes `select_scatter`, and so on).  All other aliases are then stale, and are regenerated from
their parent when they are next read.  (An alias with a history of its own stays as it is if the
write was to another part of one split: `unsafe_split` makes such aliases.)

Autograd adds one thing.  Aliases that are differentiable views of one another form a *family* and
share an autograd history; `detach` and `.data` start a new family.  Between families of a storage
data flows but history does not: what a family receives from another family, or from a write under
`no_grad`, is new data with the family's old history, which a graph expresses as
`with_data(history, data)`.

**Invariant.** Whether a tensor is a view or requires grad is read off the traced tensor, on which
torch's own autograd ran; nothing here predicts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch import fx
from torch.autograd.graph import Node

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode, source_of, value_of
from adjoint.graph.operations import with_data
from adjoint.torch_private.autograd import above_autograd
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.operators import OpOverload
from adjoint.trace.emission import Emitter
from adjoint.trace.views import ViewStep, has_internal_overlap, undo

RECORDED = Mode(grad_enabled=True)
UNRECORDED = Mode(grad_enabled=False)


class Link(Enum):
    """Whether an alias shares its parent's autograd history."""

    AUTOGRAD = auto()
    """It does if its tensor is a differentiable view."""
    FAMILY = auto()
    """It does: a tensor after `t_`, or a base that is not a tensor of the program."""
    FOREIGN = auto()
    """It does not, such as an input that shares a storage with others but is no view of them."""


@dataclass(eq=False)
class Storage:
    """A storage of the traced program."""

    written: list[Alias] = field(default_factory=list)
    """The alias that each write went through."""
    aliases: list[Alias] = field(default_factory=list)
    depends_on_offset: bool = False
    """Whether the program depends on storage offsets of its tensors."""
    open: Callable[[], None] | None = None
    """Makes the whole storage the root, for an input that covers only a part of it."""
    lent_by: tuple[Storage, int] | None = None
    """For a result of a custom function, which is a view of an argument: the storage of that, and
    how often it had been written to.  They count as two, which is right until one is written to."""

    @property
    def writes(self) -> int:
        return len(self.written)


@dataclass(eq=False)
class Alias:
    """One tensor over a storage, and the node with its value as of write number `stamp`."""

    storage: Storage
    tensor: torch.Tensor | None
    """The traced tensor; None for a base that is not a tensor of the program."""
    parent: Alias | None = None
    step: ViewStep | None = None
    node: fx.Node | None = None
    make_node: Callable[[], fx.Node] | None = None
    """Makes the node when it is first read."""
    stamp: int = 0
    link: Link = Link.AUTOGRAD
    dtype: torch.dtype | None = None
    """The dtype of a whole storage that is an input but not a tensor of the program."""
    flat: Alias | None = None
    """The memory of this family as one flat alias, once it was needed."""
    is_hidden: bool = False
    """Whether this is the base of an input that the caller did not pass, so that it has no
    value."""
    is_input: bool = False
    """Whether the caller holds this tensor."""
    written: bool = False
    """Whether it was written to, through this alias or a view of it that is not itself an input."""
    moved_from: Alias | None = None
    """The alias of the tensor before a metadata op (`t_`, `as_strided_`, ...) made this one."""
    moved_by: OpOverload | None = None
    reaches_out_of: Alias | None = None
    """The alias that this is a differentiable view of, although it covers memory outside."""
    former: torch.Tensor | None = None
    """A snapshot of the tensor while it had this alias, once it has another."""

    def __post_init__(self) -> None:
        self.stamp = self.storage.writes
        self.memory = None if self.tensor is None else storage_key(self.tensor)
        # A new view gets the version counter of its base only later, so the base is asked.
        counters = (each.tensor for each in self.ancestors() if each is not self)
        counter = next((each for each in counters if each is not None), self.tensor)
        self.version = 0 if counter is None else version(counter)
        self.storage.aliases.append(self)

    @property
    def place(self) -> torch.Tensor | None:
        """A tensor with the sizes, strides and offset of this alias; its autograd state is that of
        `tensor`."""
        return self.tensor if self.former is None else self.former

    @property
    def starts_family(self) -> bool:
        """Whether the history does not come from the parent."""
        if self.parent is None or self.link is Link.FOREIGN:
            return True
        if self.link is Link.FAMILY:
            return False
        return self.tensor is not None and not self.tensor._is_view()

    @property
    def is_regenerated(self) -> bool:
        """Whether autograd regenerates this view: its base was written to after it was made."""
        return self.tensor is not None and version(self.tensor) != self.version

    @property
    def has_history(self) -> bool:
        """Whether the tensor requires grad."""
        if self.tensor is None:
            return False
        try:
            with above_autograd():
                return self.tensor.requires_grad
        except (RuntimeError, _NOT_REPLAYED):
            return True  # Autograd refuses to regenerate the view, which is an error if it is used.

    @property
    def gradient_edge(self) -> tuple[Node, int] | None:
        """The autograd node and output index that compute this tensor; None for a leaf."""
        if self.tensor is None:
            return None
        with above_autograd(), contextlib.suppress(RuntimeError):
            if self.tensor.grad_fn is not None:
                return (self.tensor.grad_fn, self.tensor.output_nr)
        return None

    @property
    def is_computed(self) -> bool:
        """Whether autograd has a node for this tensor, also where the node cannot be shown."""
        try:
            return self.gradient_edge is not None
        except _NOT_REPLAYED:
            return True

    def ancestors(self) -> Iterator[Alias]:
        """This alias, its parent, and so on to the root."""
        alias: Alias | None = self
        while alias is not None:
            yield alias
            alias = alias.parent

    def origins(self) -> Iterator[Alias]:
        """This alias, what it was made from (its tensor's former alias after a metadata op), and so
        on."""
        alias: Alias | None = self
        while alias is not None:
            yield alias
            alias = alias.moved_from or alias.parent


# Autograd regenerates a view of a base that was changed in place by its strides; for fakes it
# replays the view op, which raises this if the base no longer has the shape for it.
_NOT_REPLAYED = ValueError


def version(tensor: torch.Tensor) -> int:
    """The version counter of `tensor`; inference tensors have none."""
    return 0 if tensor.is_inference() else tensor._version


def requires_grad_by_itself(view: torch.Tensor) -> bool:
    """Whether a view is a leaf that requires grad, which `requires_grad_()` makes of it."""
    with contextlib.suppress(RuntimeError, _NOT_REPLAYED):
        return view.is_leaf and view.requires_grad
    return False


def read(emitter: Emitter, alias: Alias) -> fx.Node:
    """The node with the current value of `alias`."""
    if alias.is_hidden:
        raise CaptureError(
            "the base of a view", "only the view was passed", "pass the base", emitter.source()
        )
    if alias.storage.lent_by is not None:
        lender, writes = alias.storage.lent_by
        if lender.writes != writes:
            raise _written_beside(alias)
    if alias.node is None and alias.make_node is not None:
        alias.node = alias.make_node()
    if alias.parent is None or (alias.node is not None and alias.stamp == alias.storage.writes):
        assert alias.node is not None
        return alias.node
    assert alias.step is not None
    if alias.node is not None and alias.starts_family and _is_untouched(alias):
        alias.stamp = alias.storage.writes
        return alias.node
    viewed = read(emitter, alias.parent)
    if not alias.starts_family:
        # Autograd regenerates a view once its base has changed, whatever mode it was made in.
        recorded = alias.tensor is None or alias.is_computed
        alias.node = alias.step.emit(emitter, viewed, RECORDED if recorded else UNRECORDED)
    else:
        data = _data_of(emitter, alias, viewed)
        alias.node = _under_history(emitter, alias, alias.node, data)
    alias.stamp = alias.storage.writes
    return alias.node


def write(emitter: Emitter, alias: Alias, new: fx.Node, mode: Mode) -> None:
    """Make `new` the value of `alias`, computed under `mode`."""
    chain = list(alias.ancestors())
    if alias.storage.lent_by is not None:
        raise _written_beside(alias)
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
    lowest = _lowest_without_overlap(emitter, chain, recorded)
    alias.storage.written.append(alias)
    through_input = False
    for position, each in enumerate(chain):
        each.written |= not through_input
        through_input |= each.is_input
        if position < lowest:
            continue  # It is regenerated when it is read.
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
            # Only the data goes on to the ancestors: a history stays with its family.
            each.node = _under_history(emitter, each, before[position], new)
            each.stamp = each.storage.writes
        elif not _family_has_history(each):
            each.node, each.stamp = new, each.storage.writes


def _written_beside(alias: Alias) -> CaptureError:
    """The error for memory of a custom function's result that is written to; it names the call."""
    *_, result = alias.ancestors()
    return CaptureError(
        "a write",
        "a custom function has returned a view of the memory, with a history of its own",
        "return a new tensor from its forward, such as x.clone() in place of x",
        None if result.node is None else source_of(result.node),
    )


def _is_untouched(alias: Alias) -> bool:
    """Whether no write since the alias was last read was to memory that it covers.

    Only for the data of an alias: autograd regenerates a view wherever its base was written to.
    """
    since = alias.storage.written[alias.stamp :] if alias.stamp >= 0 else None
    return since is not None and all(_are_disjoint(alias, each) for each in since)


def _are_disjoint(one: Alias, other: Alias) -> bool:
    """Whether two aliases are known to share no memory: they come from two parts of one split."""
    chains = [list(each.ancestors())[::-1] for each in (one, other)]
    split = next((pair for pair in zip(*chains, strict=False) if pair[0] is not pair[1]), None)
    if split is None or split[0].step is None or split[1].step is None:
        return False
    first, second = split[0].step, split[1].step
    return (
        first.output != second.output
        and None not in (first.output, second.output)
        and (first.op, first.args, first.kwargs) == (second.op, second.args, second.kwargs)
    )


def _lowest_without_overlap(emitter: Emitter, chain: Sequence[Alias], recorded: bool) -> int:
    """The index in `chain` above all views that have internal overlap."""
    overlaps = [a.place is not None and has_internal_overlap(a.place) for a in chain]
    if not any(overlaps):
        return 0
    lowest = len(chain) - overlaps[::-1].index(True)
    if lowest == len(chain) or (recorded and any(a.starts_family for a in chain[:lowest])):
        raise CaptureError(
            "a write",
            "it is a view of a tensor with internal overlap, in which elements share memory",
            "write to the tensor that was expanded, or to a clone()",
            emitter.source(),
        )
    return lowest


def _data_of(emitter: Emitter, alias: Alias, viewed: fx.Node) -> fx.Node:
    assert alias.step is not None
    assert alias.parent is not None
    if _family_has_history(alias.parent):
        # A view made under no_grad would still require grad if its base does.
        viewed = emitter.call(torch.ops.aten.detach.default, (viewed,), mode=UNRECORDED)
    return alias.step.emit(emitter, viewed, UNRECORDED)


def _under_history(
    emitter: Emitter, alias: Alias, history: fx.Node | None, data: fx.Node
) -> fx.Node:
    if history is None or not alias.has_history:
        return data
    return emitter.call(with_data, (history, data), mode=RECORDED, value=value_of(data))


def _family_has_history(alias: Alias) -> bool:
    root = next(each for each in alias.ancestors() if each.starts_family)
    return root.has_history
