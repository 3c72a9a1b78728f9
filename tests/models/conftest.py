"""`torch_geometric` replaces functions of torch by its own, which refuse tensors without dims.

What other tests call should be torch's.
"""

from __future__ import annotations

import contextlib

import torch

REPLACED = {name: getattr(torch, name) for name in ("index_select", "select")}

with contextlib.suppress(ImportError):
    import torch_geometric  # noqa: F401

for name, function in REPLACED.items():
    setattr(torch, name, function)
