"""What a function saves for its derivative, why, and the memory that it will need.

The *footprint* of a plan is its slots with their bytes and lifetimes (`loops/footprint.py`); a
*chain footprint* is that of programs that run one after the other, such as a forward and a
backward: the memory reserved for temporaries, and the saved values, each until the backward has
read it (`loops/chain_footprint.py`; which programs they are, `chains.py`).  `adjoint.saved_values`
(`report.py`) shows it together with each saved value: its line, for which derivative, and why.
"""

from adjoint.memory.report import MemoryReport, saved_values

__all__ = ["MemoryReport", "saved_values"]
