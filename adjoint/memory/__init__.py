"""What a function saves for its derivative, why, and the memory that it will need.

The *footprint* of a plan is its slots with their bytes and lifetimes (`loops/footprint.py`); a
*chain footprint* is that of programs that run one after the other, such as a forward and a
backward: the memory reserved for temporaries, and the saved values, each until the backward has
read it (`loops/chain_footprint.py`; which programs they are, `chains.py`).  `adjoint.saved_values`
(`report.py`) shows the chain footprint, and of each saved value its line, the derivatives that read
it, and why it is saved (`values.py`).
"""

from adjoint.memory.report import MemoryReport, saved_values

__all__ = ["MemoryReport", "saved_values"]
