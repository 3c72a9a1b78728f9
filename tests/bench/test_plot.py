from pathlib import Path
from xml.etree import ElementTree

from adjoint.bench.plot import svg, write
from adjoint.bench.results import Table
from tests.bench.made_up import table

NAME = "{http://www.w3.org/2000/svg}"


def bars(picture: str) -> list[float]:
    found = ElementTree.fromstring(picture).iter(f"{NAME}rect")
    return [float(r.attrib["width"]) for r in found if "x" in r.attrib]


def test_two_bars_for_each_row_that_ran() -> None:
    widths = bars(svg(table()))
    assert len(widths) == 2 * 5
    steps, colds = widths[::2], widths[1::2]
    assert abs(steps[2] - steps[0] / 3) < 0.2  # Steps are linear: 0.1 s against 0.3 s.
    # First calls are logarithmic: 0.3, 40 and 4 s between 0.1 and 100 s.
    assert abs((colds[1] - colds[2]) - 260 / 3) < 0.2


def test_nothing_measured_is_still_a_picture() -> None:
    assert bars(svg(Table(()))) == []


def test_a_page_holds_the_picture(tmp_path: Path) -> None:
    write(table(), tmp_path / "a.html")
    assert svg(table()) in (tmp_path / "a.html").read_text()
