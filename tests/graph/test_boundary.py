"""Whose a failure is, what was being worked on, and what the user is told."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.errors import CaptureError, DifferentiationError, FallbackWarning, SourceLine
from adjoint.failing import call_user_code, works_on
from adjoint.graph import boundary
from adjoint.graph.boundary import Location, attempt, capturing, differentiating, location_of
from adjoint.torch_private.dynamo import DynamoError

LINE = SourceLine("model.py", 12, "forward", "y = x.sin()")
WHOLE = Location("a graph", SourceLine("model.py", 1, "forward", ""))


def sines(x: Tensor) -> Tensor:
    return x.sin().cos()


def graph() -> fx.GraphModule:
    return adjoint.capture(sines, torch.ones(3)).graph_module


def raised(error: Exception, within: Callable[..., Any] = lambda run: run()) -> Exception:
    """`error`, as if some function of the package had raised it, called by `within`."""

    def fails() -> None:
        raise error

    try:
        within(_of_ours(fails))
    except type(error) as caught:
        return caught
    raise AssertionError


def _of_ours(function: Callable[[], None]) -> Callable[[], None]:
    """A function that looks as if it were in the package."""
    code = compile("def run():\n    return function()", boundary.__file__, "exec")
    namespace: dict[str, Any] = {"function": function}
    exec(code, namespace)
    run: Callable[[], None] = namespace["run"]
    return run


def test_a_node_that_is_worked_on_says_op_and_line() -> None:
    module = graph()
    (sine, *_) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)

    @works_on("node")
    def work(run: Callable[[], None], node: fx.Node) -> None:
        run()

    error = raised(KeyError("x"), lambda run: work(run, sine))
    place = location_of(error, lambda: WHOLE)
    assert place.op == "aten.sin.default"
    assert place.source is not None
    assert (place.source.file, place.source.text) == (__file__, "return x.sin().cos()")


def test_of_a_node_that_is_no_op_nothing_is_said() -> None:
    (x,) = graph().graph.find_nodes(op="placeholder")

    @works_on("node")
    def work(run: Callable[[], None], node: fx.Node) -> None:
        run()

    place = location_of(raised(KeyError("x"), lambda run: work(run, x)), lambda: WHOLE)
    assert place.op == WHOLE.op


def test_an_op_alone_says_no_line() -> None:
    @works_on("op")
    def work(run: Callable[[], None], op: Any) -> None:
        run()

    error = raised(KeyError("x"), lambda run: work(run, torch.ops.aten.sin.default))
    assert location_of(error, lambda: WHOLE).op == "aten.sin.default"


def test_a_graph_is_told_by_its_size_and_its_last_line() -> None:
    place = boundary.location_of_graph(graph())
    assert place.op == "a graph of 2 ops (aten.sin.default, aten.cos.default)"
    assert place.source is not None
    assert place.source.text == "return x.sin().cos()"


def test_a_function_is_told_by_its_first_line() -> None:
    place = boundary.location_of_function(sines)
    assert place.op == "sines"
    assert place.source is not None
    assert place.source.text == "def sines(x: Tensor) -> Tensor:"
    called = boundary.location_of_function(torch.sin).source
    assert called is not None
    assert called.function == "test_a_function_is_told_by_its_first_line"


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("x"),
        IndexError("x"),
        KeyError("x"),
        ZeroDivisionError("x"),
        RecursionError("x"),
        RuntimeError("x"),
        StopIteration("x"),
    ],
)
def test_a_failure_is_an_error_of_its_kind(error: Exception) -> None:
    run = _of_ours(lambda: raise_(error))
    said = f"a graph: .*{type(error).__name__}: "
    with pytest.raises(CaptureError, match=said) as captured, capturing(lambda: WHOLE):
        run()
    assert captured.value.is_internal
    assert f"at {__file__}:" in str(captured.value)
    assert "runs it in eager torch; please report it" in str(captured.value)
    assert captured.value.__cause__ is error
    said, module = type(error).__name__, graph()
    with pytest.raises(DifferentiationError, match=said) as differentiated, differentiating(module):
        run()
    assert differentiated.value.order == 1
    assert "runs it in eager torch; please report it" in str(differentiated.value)
    assert differentiated.value.source is not None
    assert differentiated.value.__cause__ is error
    with pytest.warns(FallbackWarning, match="a graph of 2 ops .* runs op by op: .*x"):
        assert attempt(run, graph()) is None


def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [
        CaptureError("x", "y", "z", LINE),
        DifferentiationError("x", 1, "y", LINE),
        KeyboardInterrupt(),
        SystemExit(),
        MemoryError(),
        torch.OutOfMemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        FallbackWarning("x"),
        DynamoError("x"),
    ],
)
def test_what_passes(error: BaseException) -> None:
    run = _of_ours(lambda: raise_(error))
    module = graph()
    for context in (capturing(lambda: WHOLE), differentiating(module)):
        with pytest.raises(type(error)) as caught, context:
            run()
        assert caught.value is error
    with pytest.raises(type(error)):
        attempt(run, module)


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("error", [AssertionError("x"), KeyError("x"), RuntimeError("x")])
def test_what_the_program_raises_is_the_programs(error: Exception, checked: bool) -> None:
    with pytest.raises(type(error)) as caught, capturing(lambda: WHOLE, checked):
        call_user_code(raise_, error)
    assert caught.value is error


def test_what_ops_refuse_is_the_programs() -> None:
    x = torch.ones(3)
    for index, error in ((5, IndexError), (torch.ones(3, 3, 3) > 0, IndexError)):
        with pytest.raises(error), capturing(lambda: WHOLE):
            call_user_code(x.__getitem__, index)
    with pytest.raises(RuntimeError, match="size of tensor"), capturing(lambda: WHOLE):
        call_user_code(torch.add, x, torch.ones(4))


@pytest.mark.parametrize("wrong", [lambda: 1 // 0, lambda: [][0]])
def test_what_dynamo_has_checked_is_not_refused_by_ops(wrong: Callable[[], Any]) -> None:
    """As far as a function of C can tell, which has no frame of the user's."""
    nothing: list[int] = []
    lookup = nothing.__getitem__
    with pytest.raises(CaptureError, match="IndexError"), capturing(lambda: WHOLE, checked=True):
        call_user_code(lookup, 0)
    with pytest.raises((IndexError, ZeroDivisionError)), capturing(lambda: WHOLE, checked=True):
        call_user_code(wrong)


def test_a_failure_below_the_program_is_ours() -> None:
    run = _of_ours(lambda: raise_(RuntimeError("x")))
    with pytest.raises(CaptureError), capturing(lambda: WHOLE):
        call_user_code(lambda: run())


def test_a_failure_that_the_user_knows_of_is_not_told_again() -> None:
    module = graph()
    told: set[str] = set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for error in (KeyError("x"), KeyError("x"), KeyError("y")):
            assert attempt(lambda error=error: raise_(error), module, reported=told) is None  # type: ignore[misc]
    assert [str(each.message).count("KeyError") for each in caught] == [1, 1]


def test_warnings_are_at_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        boundary.warn_of_fallback("first", LINE)
        boundary.warn_of_fallback("second", None)
    first, second = caught
    assert (first.filename, first.lineno) == ("model.py", 12)
    assert second.filename == __file__
