"""Convolutional networks: a ResNet, a ConvNeXt and a U-Net, trained on random images."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from adjoint.bench.problems import Network, Problem
from adjoint.bench.zoo.scales import choose

CLASSES = 1000


class Bottleneck(nn.Module):
    """Three convolutions with batch norm, the middle one spatial, added to the input."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = nn.Conv2d(inputs, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.spatial_norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, outputs, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(outputs)
        changes = stride != 1 or inputs != outputs
        self.skip: nn.Module = nn.Identity()
        if changes:
            skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.skip = nn.Sequential(skip, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.reduce_norm(self.reduce(x)))
        y = F.relu(self.spatial_norm(self.spatial(y)))
        y = self.expand_norm(self.expand(y))
        return F.relu(y + self.skip(x))


class ResNet(nn.Module):
    """A residual network; with depths 3, 4, 6, 3 and width 64 it has ResNet-50's layers."""

    def __init__(self, depths: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        channels = width
        for stage, depth in enumerate(depths):
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(F.relu(self.stem_norm(self.stem(images))))
        scores: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return scores


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, layer norm over channels, and two scaled linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.contract(F.gelu(self.expand(y))) * self.scale
        added: Tensor = x + y.permute(0, 3, 1, 2)
        return added


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of an image."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """With depths 3, 3, 9, 3 and width 96 it has the layers of ConvNeXt's tiny size."""

    def __init__(self, depths: tuple[int, ...], width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 4), ChannelNorm(width)]
        for stage, depth in enumerate(depths):
            channels = width << stage
            if stage > 0:
                layers += [ChannelNorm(channels // 2), nn.Conv2d(channels // 2, channels, 2, 2)]
            layers += [ConvNeXtBlock(channels) for _ in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width << (len(depths) - 1))
        self.head = nn.Linear(width << (len(depths) - 1), CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.layers(images).mean((2, 3))))
        return scores


class NormedConvolutions(nn.Module):
    """Two convolutions, each after group norm and SiLU, added to the input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(8, inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second_norm = nn.GroupNorm(8, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip: nn.Module = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(F.silu(self.first_norm(x)))
        y = self.second(F.silu(self.second_norm(y)))
        added: Tensor = self.skip(x) + y
        return added


class UNet(nn.Module):
    """Downsampling by pooling, upsampling by interpolation, with skip connections between them."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        pairs = list(itertools.pairwise(widths))
        self.down = nn.ModuleList(NormedConvolutions(above, below) for above, below in pairs)
        self.middle = NormedConvolutions(widths[-1], widths[-1])
        self.up = nn.ModuleList(
            NormedConvolutions(above + below, above) for above, below in reversed(pairs)
        )
        self.norm = nn.GroupNorm(8, width)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        seen: list[Tensor] = []
        for block in self.down:
            seen.append(x)
            x = block(F.avg_pool2d(x, 2))
        x = self.middle(x)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, seen.pop()], 1))
        noise: Tensor = self.head(F.silu(self.norm(x)))
        return noise


def _classification(net: Network, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(net(images), labels)


def _denoising(net: Network, images: Tensor, noise: Tensor) -> Tensor:
    return F.mse_loss(net(images), noise)


def classifier(net: nn.Module, count: int, size: int, device: str) -> Problem:
    """A network trained to classify random images."""
    images = torch.randn(count, 3, size, size, device=device)
    labels = torch.randint(0, CLASSES, (count,), device=device)
    return Problem(net.to(device), (images, labels), _classification, {}, mixed=device == "cuda")


def resnet(device: str, small: bool) -> Problem:
    """ResNet-50 on 64 images; smaller on a CPU."""
    depths, width, count, size = choose(
        device,
        small,
        full=((3, 4, 6, 3), 64, 64, 224),
        cpu=((1, 1, 1, 1), 16, 8, 64),
        tiny=((1, 1), 8, 2, 32),
    )
    torch.manual_seed(0)
    return classifier(ResNet(depths, width), count, size, device)


def convnext(device: str, small: bool) -> Problem:
    """ConvNeXt's tiny size on 64 images; smaller on a CPU."""
    depths, width, count, size = choose(
        device,
        small,
        full=((3, 3, 9, 3), 96, 64, 224),
        cpu=((1, 1, 2, 1), 24, 8, 64),
        tiny=((1, 1), 8, 2, 32),
    )
    torch.manual_seed(0)
    return classifier(ConvNeXt(depths, width), count, size, device)


def unet(device: str, small: bool) -> Problem:
    """A U-Net trained to predict the noise of images, as in a diffusion model."""
    width, levels, count, size = choose(
        device, small, full=(64, 4, 32, 64), cpu=(16, 3, 4, 32), tiny=(16, 2, 2, 16)
    )
    torch.manual_seed(0)
    net = UNet(width, levels).to(device)
    images, noise = (torch.randn(count, 3, size, size, device=device) for _ in range(2))
    return Problem(net, (images, noise), _denoising, {}, mixed=device == "cuda")
