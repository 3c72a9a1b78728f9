"""Text that has to fit on one line."""

from __future__ import annotations

MAX_LINE_CHARACTERS = 120
MAX_MESSAGE_CHARACTERS = 200
MAX_SIGNATURE_CHARACTERS = 240

LONG_CALL_CHARACTERS = 1000
"""The length that a call over several lines counts for, and once more for each line."""


def shortened(text: str, characters: int) -> str:
    """The text on one line, cut where it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"
