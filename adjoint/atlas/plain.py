"""Plain values as text, the same text for the same value."""

from __future__ import annotations

import hashlib
import json


def dumped(value: object) -> str:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def digest_of(*values: object) -> str:
    """A hash of values."""
    return hashlib.sha256(dumped(values).encode("utf-8", errors="surrogatepass")).hexdigest()[:24]
