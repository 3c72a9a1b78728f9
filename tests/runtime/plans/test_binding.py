from __future__ import annotations

import pytest
import torch

from adjoint.loops.plan import SlotKind
from adjoint.runtime.plans.binding import BINDING_FAILURES, BindingFailed
from adjoint.runtime.plans.hostcode import Undefined
from adjoint.runtime.plans.layout import ALIGNMENT_BYTES
from tests.lowering import program_of


def test_what_fails_is_not_bound_and_interruptions_are_not_failures() -> None:
    with pytest.raises(BindingFailed) as caught, BINDING_FAILURES:
        raise IndexError("3")
    assert type(caught.value.__cause__) is IndexError
    with pytest.raises(KeyboardInterrupt), BINDING_FAILURES:
        raise KeyboardInterrupt


def test_inner_tensors_lie_in_one_piece_of_memory() -> None:
    x = torch.rand(64, 48)
    program = program_of(lambda x: [((x.exp() @ x.t()).sort(1).values.sin() @ x).sort(1)[0]], [x])
    binding = program._binding(1)
    binding.bind((1,))
    inner = [slot for slot in program.plan.slots if slot.number in binding.tensors]
    assert len(inner) > 1
    for slot in inner:
        assert slot.kind is SlotKind.TEMPORARY
        tensor = binding.tensors[slot.number]
        assert tensor.untyped_storage().data_ptr() == binding.arena.data_ptr()
        assert tensor.data_ptr() % ALIGNMENT_BYTES == 0
        assert (tensor.shape, tensor.stride()) == (slot.shape, slot.strides)


def test_memory_taken_in_inference_mode_is_written_to_elsewhere() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.bmm(x.sin(), y).cos().sort(1).values.exp()]

    x, y = torch.rand(3, 4, 5), torch.rand(3, 5, 5)
    program = program_of(function, [x, y])
    with torch.inference_mode():
        (inside,) = program([x, y])
    assert inside.is_inference()
    (outside,) = program([x, y])
    assert not outside.is_inference()
    torch.testing.assert_close([inside, outside], 2 * function(x, y))


def test_undefined_host_code_binds_nothing() -> None:
    x = torch.rand(3, 4)
    program = program_of(lambda x: [x.sin() + 1], [x])
    for phase in ("_sizes_code", "_addresses_code"):
        binding = program._binding(1)
        _, words = getattr(binding, phase)
        setattr(binding, phase, (lambda *sizes: 1, words))
        with pytest.raises(Undefined, match="a size is divided by zero, or does not fit into"):
            binding.bind((1,))
        assert binding.sizes is None
