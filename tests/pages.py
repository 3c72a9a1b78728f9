"""What the page of any model must be: small, open at once, and linked in all directions."""

from __future__ import annotations

import time
from pathlib import Path

from adjoint.explaining import Explanation
from tests.browsers import Browser

MAX_BYTES = 15 << 20
MAX_SECONDS = 2.0


def assert_page_opens_at_once(explanation: Explanation, browser: Browser, folder: Path) -> None:
    file = folder / "model.html"
    explanation.save(file)
    assert file.stat().st_size < MAX_BYTES
    browser.resize(1500, 950)
    begun = time.monotonic()
    browser.open(file)
    browser.wait("return document.documentElement.dataset.ready === 'yes'")
    assert time.monotonic() - begun < MAX_SECONDS
    # A line, a value of the program, a value of a derivative and a kernel are linked.
    linked = browser.run(
        """
        const { VALUES, DATA, linked } = REPORT;
        const place = VALUES.findIndex((v, n) => DATA.graphs[v.graph].role === 'forward'
          && DATA.graphs[v.graph].order === 0 && v.line !== null && v.kernels.length
          && [...linked('value', n).value].some((o) => DATA.graphs[VALUES[o].graph].order > 0));
        return place < 0 ? null : [...linked('value', place).kernel].length;
        """
    )
    assert linked
