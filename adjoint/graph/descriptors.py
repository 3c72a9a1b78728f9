"""Descriptors say what each input and each output of a graph means.

A graph is flat: tensors in, tensors out. Capture lifts parameters to inputs, returns the new values
of mutated tensors and replaces aliases by their base; differentiation adds tangents, gradients and
saved values. After that, neither a position nor a name says what a value is. Every input and output
therefore carries a descriptor.

Examples
--------
Inputs:

* `Argument(0, "args[0]['x']")` - the first tensor among the user's arguments, as it was passed.
* `Parameter("layer.weight")` - the parameter of that qualified name.
* `ViewBase((Argument(0, "args[0]"), Argument(1, "args[1]")))` - both arguments are differentiable
  views of this tensor. The graph takes it in their place and makes the views itself. Gradients are
  returned for it, not for the arguments it replaces.
* `Tangent(Result(1, "result[1]"))` - what autograd hands to the backward: the derivative of the
  user's loss with respect to the second result.

Outputs:

* `Result(0, "result['loss']")` - the first tensor among the values that the function returns.
* `InputMutation(Buffer("running_mean"))` - what the buffer holds after the call.
* `Gradient(Parameter("layer.weight"))` - the derivative of the loss with respect to the parameter.
* `Saved(2, checked=True)` - a value that the forward keeps for the backward.

Derivatives of derivatives:

* `Tangent(Gradient(Argument(0, "args[0]")))` - what autograd hands in for a gradient, when a loss
  depends on it: the force of a potential, the gradient penalty.
* `Gradient(Tangent(Result(0, "result")))` - the derivative with respect to such a cotangent.

Meaning
-------
Say the user calls `outer`, and `outer` calls the graph:

    def outer(*arguments):
        return leave(graph(*enter(arguments)))

The descriptor of input i is the function from `arguments` to `enter(arguments)[i]`. The descriptor
of output j is the function from what `outer` returns and does to output j of the graph: it points
against the flow of data, from the outside in. `describe()` reads this aloud.

Two inputs of a graph never have equal descriptors, nor have two outputs: each one names its value.

Orders. The program that the user wrote has order 0, its backward order 1, the backward of that one
order 2. A tangent or gradient belongs to the differentiation that introduced it; its `order` says
which. Usually that is one more than the order of what it is taken of, and need not be written:
`Gradient(Tangent(Result(0, "result")))` is of order 2. It must be written where a value is
differentiated once more, long after it appeared: a parameter that is used in a function and again
in the function's backward has the gradients `Gradient(p)` and `Gradient(p, order=2)`, and a graph
that holds both programs returns both. `order_of` gives the order of any descriptor.

Legal nesting
-------------
The stages of the compiler add descriptors in one order, and each may speak of earlier ones only:

1. what the user sees: `Argument`, `Parameter`, `Buffer`, `ClosedOver`, `SymbolicSize`; `Result`;
2. aliasing and mutation: `ViewBase`, `SyntheticBase`; `InputMutation`, `MetadataMutation`,
   `IntermediateBase`, `ViewArgument`, `ViewValue`;
3. autograd: `Tangent`, `SavedInput`; `Gradient`, `Saved`. These nest in one another to any depth,
   because the result of differentiating can be differentiated;
4. side effects and random draws: `EffectToken`, `EffectTokenOut`, `Seeds`, which speak of nothing.

Mechanics
---------
Descriptors are frozen, compare by content, and can be keys of a dict. `Input`, `Output`,
`DifferentiableInput`, ... are closed unions: `isinstance` understands them, and mypy checks that a
`match` over one is exhaustive. An illegal nesting is an error in mypy, and a `TypeError` at run
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, get_args

from typing_extensions import assert_never

# 1. What the user sees.


@dataclass(frozen=True, slots=True)
class Argument:
    """The `index`-th tensor among the leaves of the user's arguments, found at `path`."""

    index: int
    path: str

    def describe(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the user's module, by its qualified name."""

    name: str

    def describe(self) -> str:
        return f"parameter {self.name!r}"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of the user's module, by its qualified name."""

    name: str

    def describe(self) -> str:
        return f"buffer {self.name!r}"


@dataclass(frozen=True, slots=True)
class ClosedOver:
    """A tensor that the function closes over. Two of them may have one name, hence the index."""

    index: int
    name: str

    def describe(self) -> str:
        return f"captured {self.name!r}"


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """An integer that is a size, or from which sizes are computed."""

    name: str

    def describe(self) -> str:
        return f"size {self.name}"


@dataclass(frozen=True, slots=True)
class Result:
    """The `index`-th leaf among the values that the user's function returns, found at `path`."""

    index: int
    path: str

    def describe(self) -> str:
        return self.path


# 2. Aliasing and mutation.


@dataclass(frozen=True, slots=True)
class ViewBase:
    """The autograd base of inputs that alias. The graph takes it in their place."""

    of: tuple[PlainInput, ...]

    def __post_init__(self) -> None:
        _require_each(self, self.of, PlainInput, "inputs that the user sees")

    def describe(self) -> str:
        return f"view base of {_listed(self.of)}"


@dataclass(frozen=True, slots=True)
class SyntheticBase:
    """The storage shared by inputs that are not views of one base, as one flat tensor."""

    of: tuple[PlainInput, ...]

    def __post_init__(self) -> None:
        _require_each(self, self.of, PlainInput, "inputs that the user sees")

    def describe(self) -> str:
        return f"storage shared by {_listed(self.of)}"


@dataclass(frozen=True, slots=True)
class InputMutation:
    """What a mutated input holds after the call."""

    of: PrimalInput

    def __post_init__(self) -> None:
        _require(self, self.of, PrimalInput, "an input that existed before differentiation")

    def describe(self) -> str:
        return f"new value of {self.of.describe()}"


@dataclass(frozen=True, slots=True)
class MetadataMutation:
    """An input as it is seen after the call changed its sizes, strides or storage."""

    of: PrimalInput

    def __post_init__(self) -> None:
        _require(self, self.of, PrimalInput, "an input that existed before differentiation")

    def describe(self) -> str:
        return f"new metadata of {self.of.describe()}"


@dataclass(frozen=True, slots=True)
class IntermediateBase:
    """A value computed in the graph of which results are views. The views are replayed outside."""

    of: tuple[Result, ...]

    def __post_init__(self) -> None:
        _require_each(self, self.of, Result, "results")

    def describe(self) -> str:
        return f"base of {_listed(self.of)}"


@dataclass(frozen=True, slots=True)
class ViewArgument:
    """An integer argument of a view op that is replayed outside the graph."""

    index: int

    def describe(self) -> str:
        return f"view argument #{self.index}"


@dataclass(frozen=True, slots=True)
class ViewValue:
    """The value of a view that is replayed outside the graph but has an autograd history of its
    own."""

    index: int

    def describe(self) -> str:
        return f"view value #{self.index}"


# 3. Autograd.


@dataclass(frozen=True, slots=True)
class Saved:
    """A value kept for the backward of order `order`.

    It is a differentiable output: when that backward is differentiated again, a cotangent reaches
    the saved value and must flow on into the program that computed it.
    """

    index: int
    checked: bool
    """Whether it is an error to mutate the value between forward and backward, as in eager."""
    order: int = 1

    def __post_init__(self) -> None:
        if self.order < 1:
            raise ValueError(f"Saved.order is {self.order}; the first backward has order 1")

    def describe(self) -> str:
        about = [] if self.checked else ["unchecked"]
        about += [f"order {self.order}"] if self.order > 1 else []
        return f"saved value #{self.index}" + (f" ({', '.join(about)})" if about else "")


@dataclass(frozen=True, slots=True)
class SavedInput:
    """A saved value, where it enters the backward."""

    of: Saved

    def __post_init__(self) -> None:
        _require(self, self.of, Saved, "a saved value")

    def describe(self) -> str:
        return self.of.describe()


@dataclass(frozen=True, slots=True)
class EarlierResult:
    """A result that other results are computed from, as an input of the segment that computes
    them."""

    of: DifferentiableOutput

    def __post_init__(self) -> None:
        _require(self, self.of, DifferentiableOutput, "a differentiable output")

    def describe(self) -> str:
        return f"{self.of.describe()}, used further on"


@dataclass(frozen=True, slots=True)
class Tangent:
    """The cotangent of an output, as autograd hands it to the backward."""

    of: DifferentiableOutput
    order: int = 0
    """Which differentiation introduced it; 0 stands for the first possible one."""

    def __post_init__(self) -> None:
        _require(self, self.of, DifferentiableOutput, "a differentiable output")
        object.__setattr__(self, "order", _legal_order(self))

    def describe(self) -> str:
        return f"tangent of {self.of.describe()}{_order_if_unusual(self)}"


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of an input, as the backward returns it."""

    of: DifferentiableInput
    order: int = 0
    """Which differentiation introduced it; 0 stands for the first possible one."""

    def __post_init__(self) -> None:
        _require(self, self.of, DifferentiableInput, "a differentiable input")
        object.__setattr__(self, "order", _legal_order(self))

    def describe(self) -> str:
        return f"gradient of {self.of.describe()}{_order_if_unusual(self)}"


# 4. Side effects and random draws.


@dataclass(frozen=True, slots=True)
class Seeds:
    """The key of the counter-based generator, and where the streams of this call begin."""

    def describe(self) -> str:
        return "seeds of the random streams"


@dataclass(frozen=True, slots=True)
class EffectToken:
    """Orders operators with side effects: the token that the first of them takes."""

    index: int

    def describe(self) -> str:
        return f"effect token #{self.index}"


@dataclass(frozen=True, slots=True)
class EffectTokenOut:
    """Orders operators with side effects: the token that the last of them returns."""

    index: int

    def describe(self) -> str:
        return f"updated effect token #{self.index}"


# The unions stand below their members because `isinstance` needs them at run time.

PlainInput: TypeAlias = Argument | Parameter | Buffer | ClosedOver
PrimalInput: TypeAlias = PlainInput | ViewBase | SyntheticBase
DifferentiableInput: TypeAlias = PrimalInput | Tangent | SavedInput | EarlierResult
Input: TypeAlias = DifferentiableInput | SymbolicSize | EffectToken | Seeds

DifferentiableOutput: TypeAlias = (
    Result | InputMutation | MetadataMutation | IntermediateBase | ViewValue | Gradient | Saved
)
Output: TypeAlias = DifferentiableOutput | ViewArgument | EffectTokenOut

if TYPE_CHECKING:
    from types import UnionType

    Nesting: TypeAlias = Tangent | Gradient


def order_of(descriptor: Input | Output) -> int:
    """The order of the program that first has this input or output; the user's own has order 0."""
    match descriptor:
        case Tangent() | Gradient():
            return descriptor.order
        case SavedInput(of=saved):
            return saved.order
        case Saved():
            # It enters the program of its order, and is returned by the one before.
            return descriptor.order - 1
        case EarlierResult(of=output):
            return order_of(output)
        case (
            Argument()
            | Parameter()
            | Buffer()
            | ClosedOver()
            | SymbolicSize()
            | ViewBase()
            | SyntheticBase()
            | EffectToken()
            | Seeds()
            | Result()
            | InputMutation()
            | MetadataMutation()
            | IntermediateBase()
            | ViewArgument()
            | ViewValue()
            | EffectTokenOut()
        ):
            return 0
        case _:
            assert_never(descriptor)


def _legal_order(derivative: Nesting) -> int:
    least = order_of(derivative.of) + 1
    order = derivative.order or least
    if order < least:
        raise ValueError(
            f"{type(derivative).__name__}.order is {order}, but {derivative.of.describe()} "
            f"appears in the program of order {least - 1}: the least legal order is {least}"
        )
    return order


def _order_if_unusual(derivative: Nesting) -> str:
    unusual = derivative.order > order_of(derivative.of) + 1
    return f" (order {derivative.order})" if unusual else ""


def _listed(descriptors: tuple[Input, ...] | tuple[Output, ...]) -> str:
    *most, last = [descriptor.describe() for descriptor in descriptors]
    return f"{', '.join(most)} and {last}" if most else last


def _require(owner: object, value: object, legal: type | UnionType, meaning: str) -> None:
    if isinstance(value, legal):
        return
    names = ", ".join(member.__name__ for member in get_args(legal) or (legal,))
    raise TypeError(f"{type(owner).__name__}.of must be {meaning} ({names}), got {value!r}")


def _require_each(owner: object, values: object, legal: type | UnionType, meaning: str) -> None:
    # A list would make the descriptor unhashable.
    if not isinstance(values, tuple):
        raise TypeError(f"{type(owner).__name__}.of must be a tuple of {meaning}, got {values!r}")
    if not values:
        raise ValueError(f"{type(owner).__name__}.of must name at least one of the {meaning}")
    for value in values:
        _require(owner, value, legal, meaning)
