"""What torch logs about an error that it also raises."""

from __future__ import annotations

import logging
import threading

# The modules that evaluate fakes and their sizes: they log an error, and raise it.
_LOGGERS = (
    "torch._subclasses.fake_tensor",
    "torch.fx.experimental.sym_node",
    "torch.fx.experimental.symbolic_shapes",
)

_STARTS = ("failed ", "Failed ", "fake tensor raised ")


class _Unlogged(threading.local):
    """A context in which errors of fakes are raised, and not logged as well, in this thread.

    Code that enters it handles the error: it tries another way, or raises an error for the user.
    """

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1

    def is_logged(self, record: logging.LogRecord) -> bool:
        """Whether a record of the `_LOGGERS` is logged: not, if it is an error in this context."""
        return not self.depth or not str(record.msg).startswith(_STARTS)


unlogged = _Unlogged()

for _name in _LOGGERS:
    logging.getLogger(_name).addFilter(unlogged.is_logged)
