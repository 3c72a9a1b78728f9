"""The arguments that a transform differentiates with respect to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from adjoint.torch_private import trees
from adjoint.transforms import contract
from adjoint.transforms.contract import ArgNums


class ChosenArguments:
    """The arguments that a transform differentiates with respect to, as leaves."""

    def __init__(self, args: tuple[object, ...], places: Sequence[int] | None = None) -> None:
        """`places`: positions of the chosen arguments; None for all."""
        self.args = args
        self.single = False
        self.places = range(len(args)) if places is None else places
        chosen = tuple(args[place] for place in self.places)
        self.leaves, self.form = trees.flatten(chosen)
        self.tangents: list[torch.Tensor] = []
        contract.check_primals(self.leaves)

    @classmethod
    def named(cls, args: tuple[object, ...], argnums: ArgNums) -> ChosenArguments:
        """The arguments that `argnums` names."""
        chosen = cls(args, contract.places_of(argnums, len(args)))
        chosen.single = isinstance(argnums, int)
        return chosen

    @classmethod
    def along(cls, primals: tuple[object, ...], tangents: object) -> ChosenArguments:
        """All of `primals`, with a tangent for each leaf."""
        leaves, form = trees.flatten(primals)
        along = contract.tangents_of(leaves, form, tangents)
        chosen = cls(primals)
        chosen.tangents = along
        return chosen

    def of(
        self, function: Callable[..., object], kwargs: dict[str, object]
    ) -> Callable[..., object]:
        """`function` of the chosen leaves alone."""

        def on_leaves(*leaves: torch.Tensor) -> object:
            args = list(self.args)
            for place, value in zip(
                self.places, trees.unflatten(list(leaves), self.form), strict=True
            ):
                args[place] = value
            return function(*args, **kwargs)

        return on_leaves

    def packed(self, leaves: Sequence[object]) -> object:
        """`leaves` in the form of the chosen arguments."""
        packed = trees.unflatten(list(leaves), self.form)
        return packed[0] if self.single else packed
