from __future__ import annotations

from functools import partial

import pytest
from torch import fx

import adjoint
from adjoint.passes import Pass, extended, graph_pass


def same(graph_module: fx.GraphModule) -> fx.GraphModule:
    return graph_module


ONE, TWO = Pass("one", same, "joint"), Pass("two", same, "joint")


def names(passes: tuple[Pass, ...]) -> list[str]:
    return [each.name for each in passes]


def test_a_pass_comes_where_it_asks_to() -> None:
    last = Pass("last", same, "joint")
    between = Pass("between", same, "joint", after="one")
    elsewhere = Pass("elsewhere", same, "post")
    made = extended((ONE, TWO, ONE), "joint", [last, between, elsewhere])
    # After the last run of the pass that it names.
    assert names(made) == ["one", "two", "one", "between", "last"]
    assert names(extended((ONE,), "post", [elsewhere])) == ["one", "elsewhere"]
    # At `primal`, before all passes of ours.
    early = [Pass(name, same, "primal") for name in ("first", "second")]
    assert names(extended((ONE, TWO), "primal", early)) == ["first", "second", "one", "two"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        ValueError, match="asks for the place 'before'; choose from: 'primal', 'joint', 'post'"
    ):
        Pass("early", same, "before")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="comes after 'three', which does not run at 'joint'"):
        extended((ONE, TWO), "joint", [Pass("late", same, "joint", after="three")])
    with pytest.raises(ValueError, match="there are two passes 'one' at 'joint'"):
        extended((ONE,), "joint", [ONE])


def test_a_function_becomes_a_pass() -> None:
    @graph_pass("keep", "joint", after="one")
    def keep(graph_module: fx.GraphModule) -> fx.GraphModule:
        return graph_module

    assert keep == Pass("keep", keep.run, "joint", "one")
    graph = fx.GraphModule({}, fx.Graph())
    assert keep(graph) is graph
    assert adjoint.graph_pass is graph_pass


def test_the_identity_of_a_pass_is_that_of_what_it_does() -> None:
    def made(number: int) -> Pass:
        def run(graph_module: fx.GraphModule) -> fx.GraphModule:
            graph_module.meta["number"] = number
            return graph_module

        return Pass("numbered", run, "joint")

    assert made(1).identity == made(1).identity
    assert made(1).identity != made(2).identity
    assert made(1).identity.startswith("numbered@joint::")
    with_arguments = [Pass("kept", partial(same_but, other=each)) for each in (1, 2)]
    assert with_arguments[0].identity != with_arguments[1].identity
    assert Pass("kept", Callable()).identity == Pass("kept", Callable()).identity


def same_but(graph_module: fx.GraphModule, other: int) -> fx.GraphModule:
    return graph_module


class Callable:
    def __call__(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        return graph_module
