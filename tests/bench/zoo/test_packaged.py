import pytest
import torch
from torch import nn

from adjoint.bench.zoo import packaged
from adjoint.bench.zoo.packaged import TRANSFORMERS, UNLABELLED


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_network_of_transformers_gives_its_loss(name: str) -> None:
    pytest.importorskip("transformers")
    problem = TRANSFORMERS[name].problem("cpu", True)
    loss = problem.outside(problem.net, *problem.batch)
    assert loss.shape == ()
    assert 1 < loss < 20


def test_texts_have_different_lengths_and_only_some_tokens_are_predicted() -> None:
    batch = packaged._masked(100, (4, 32), "cpu")
    lengths = batch["attention_mask"].sum(1)
    assert len({*lengths.tolist()}) == 4
    predicted = batch["labels"] != UNLABELLED
    assert 0 < predicted.sum() < predicted.numel() // 2
    assert not (predicted & (batch["attention_mask"] == 0)).any()


def test_nothing_is_left_to_chance() -> None:
    net = packaged._without_chance(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    x = torch.randn(3, 4)
    assert torch.equal(net(x), net(x))
