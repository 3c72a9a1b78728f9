"""Results that are made outside of the graph are those of eager, with their histories."""

from __future__ import annotations

import torch

import adjoint
from adjoint.graph.calling import CallingConvention, View
from adjoint.runtime.calling import call
from adjoint.runtime.recipes import Results


def convention(function: object, *inputs: torch.Tensor) -> CallingConvention:
    return adjoint.capture(function, *inputs).calling  # type: ignore[arg-type]


def test_what_an_op_laid_out_otherwise_than_its_fake_is_copied_as_eager_copies_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin().reshape(-1)

    x = torch.rand(3, 4)
    made = call(lambda inputs: [inputs[0].sin().T.contiguous().T], convention(program, x), [x])
    torch.testing.assert_close(made[0], program(x))


def test_a_view_is_replayed_from_what_the_caller_gave() -> None:
    x = torch.rand(3, 4)
    calling = convention(lambda x: (x[1:].t(), x[1:]), x)
    across, rows = call(lambda inputs: [], calling, [x])
    assert across.equal(x[1:].t())
    assert across._base is x
    assert rows.data_ptr() == x[1].data_ptr()


def test_a_recipe_is_made_once() -> None:
    x = torch.rand(3)
    calling = convention(lambda x: (x.view(3, 1), x.view(3, 1)[0]), x)
    results = Results(calling, [x], [])
    views = [n for n, each in enumerate(calling.recipes) if isinstance(each, View)]
    assert views
    assert all(results.at(n) is results.at(n) for n in views)


def test_a_view_of_a_base_that_was_written_is_regenerated_by_autograd() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        view = y[0]
        y.mul_(3)
        return view

    x = torch.rand(2, 2, requires_grad=True)
    compiled = torch.compile(program, backend="adjoint")
    found, wanted = compiled(x), program(x)
    assert (found._base is None) == (wanted._base is None)
    gradients = [torch.autograd.grad(each.sum(), x)[0] for each in (found, wanted)]
    torch.testing.assert_close(*gradients)
