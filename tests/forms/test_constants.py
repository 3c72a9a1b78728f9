from __future__ import annotations

import pytest
import torch

from adjoint.forms.constants import MAX_CONSTANT_BYTES, constant_of, content_of, elements_of
from adjoint.forms.form import Malformed, Unwritable


def test_constants_by_their_content() -> None:
    one = content_of(torch.tensor([1.0, 2.0]))
    assert one == content_of(torch.tensor([1.0, 2.0]))
    assert one != content_of(torch.tensor([1.0, 3.0]))
    assert one != content_of(torch.tensor([1.0, 2.0]).double())
    assert content_of(torch.empty(0)) != content_of(torch.empty(0, 1))
    assert content_of(torch.tensor(True)) != content_of(torch.tensor(False))
    with pytest.raises(Unwritable, match="a constant that is a tensor subclass, or not strided"):
        content_of(torch.eye(2).to_sparse())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_elements_are_read_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    constant = torch.arange(6).resize_(shape).to(dtype)
    tag, *fields = elements_of(constant)
    assert tag == "tensor"
    found = constant_of(*fields)
    assert found.dtype is dtype
    assert found.shape == constant.shape
    assert found.equal(constant)


def test_what_cannot_be_written_with_its_elements() -> None:
    large = torch.zeros(MAX_CONSTANT_BYTES + 1, dtype=torch.int8)
    for each in (large, torch.rand(2, 3).t()):
        with pytest.raises(Unwritable, match="a constant that is large, or not contiguous"):
            elements_of(each)
    for each in (torch.nn.Parameter(torch.rand(2)), torch.rand(2, requires_grad=True)):
        with pytest.raises(Unwritable, match="a constant that is no plain tensor"):
            elements_of(each)


def test_a_constant_with_the_wrong_number_of_elements_is_refused() -> None:
    _, dtype, _, elements, device = elements_of(torch.ones(4))
    with pytest.raises(Malformed, match="as many elements as its sizes say"):
        constant_of(dtype, [5], elements, device)
    with pytest.raises(Malformed, match="a dtype and sizes"):
        constant_of("no_such_dtype", [4], elements, device)
