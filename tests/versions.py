"""The torch that tests run with, for what older ones do otherwise."""

from __future__ import annotations

import torch
from packaging.version import Version

# Major and minor, to be compared with pairs of numbers.
TORCH = Version(torch.__version__).release[:2]
