import torch
from torch import nn

from adjoint.bench.zoo.convolutional import CLASSES, ConvNeXt, ResNet, UNet


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_full_sizes_have_as_many_parameters_as_the_papers_say() -> None:
    with torch.device("meta"):
        assert count(ResNet((3, 4, 6, 3), 64)) == 25_557_032
        assert count(ConvNeXt((3, 3, 9, 3), 96)) == 28_589_128


def test_scores_of_each_class() -> None:
    images = torch.randn(2, 3, 32, 32)
    assert ResNet((1, 1), 8)(images).shape == (2, CLASSES)
    assert ConvNeXt((1, 1), 8)(images).shape == (2, CLASSES)


def test_noise_has_the_shape_of_the_images() -> None:
    images = torch.randn(2, 3, 16, 16)
    assert UNet(16, 3)(images).shape == images.shape
