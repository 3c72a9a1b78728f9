"""Dtypes that several layers treat alike."""

from __future__ import annotations

import torch

HALVES = (torch.float16, torch.bfloat16)
"""Half types: kernels compute them in float32, and round the result."""
