"""The default folder of the cache, if the option `cache` names none.

It is the user's cache folder, by the convention of the platform.  The environment variable
`ADJOINT_CACHE` names another one, or says `off`.  What a compilation computes does not depend on
it, so this is the one place that reads the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "ADJOINT_CACHE"
OFF = frozenset({"", "0", "off", "none", "false", "no"})


def default_folder(
    environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> Path | None:
    """The folder; None: there is no cache."""
    asked = environment.get(VARIABLE)
    if asked is not None:
        return None if asked.strip().lower() in OFF else Path(asked).expanduser()
    if platform == "win32":
        local = environment.get("LOCALAPPDATA")
        return Path(local) / "adjoint" / "cache" if local else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if platform == "darwin":
        return home / "Library" / "Caches" / "adjoint"
    given = environment.get("XDG_CACHE_HOME", "")
    # The convention: a path that is not absolute is ignored.
    return (Path(given) if os.path.isabs(given) else home / ".cache") / "adjoint"
