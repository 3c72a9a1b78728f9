"""Streams and devices, asked of torch without its wrappers: once for each call of a program."""

from __future__ import annotations

import torch


def raw_stream(device: int) -> int:
    """The stream that torch launches on at the moment, as the driver knows it."""
    return torch._C._cuda_getCurrentRawStream(device)


def current_device() -> int:
    return torch._C._cuda_getDevice()
