import pytest
import torch

from adjoint.finding import UsageError, call_arguments, find, find_function, instance


def test_a_module_and_a_function_are_found() -> None:
    module, function = find("torch.nn.functional:relu")
    assert module is torch.nn.functional
    assert function is torch.nn.functional.relu


def test_a_function_or_an_instance_of_a_module_can_be_called() -> None:
    assert find_function("torch.nn.functional:relu")[1] is torch.nn.functional.relu
    assert isinstance(find_function("torch.nn:ReLU")[1], torch.nn.ReLU)
    with pytest.raises(UsageError, match="torch:float32 is of type dtype, which cannot be called"):
        find_function("torch:float32")


def test_arguments_are_python() -> None:
    args, kwargs = call_arguments(torch, torch.add, "torch.ones(2), other=3")
    assert torch.equal(args[0], torch.ones(2))
    assert kwargs == {"other": 3}


@pytest.mark.parametrize(
    ("expression", "why"),
    [("missing", "NameError: name 'missing'"), ("torch.ones(", "SyntaxError"), ("1 / 0", "Zero")],
)
def test_arguments_that_fail_are_named(expression: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        call_arguments(torch, torch.add, expression)
    assert expression in str(caught.value)


def test_a_class_that_needs_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match="Linear cannot be made without arguments"):
        instance(torch.nn.Linear)


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"torch.nn.functional has no 'rely'; it has .*relu"):
        find("torch.nn.functional:rely")
