import xml.etree.ElementTree as ElementTree

from demo.picture import Curve, Panel, svg, wave_panel


def test_curves_fill_their_panel() -> None:
    panel = Panel("a < b", "x", [Curve("one", [(0, -1), (4, 3)], "red")], [(0.0, "0")])
    across, down = panel.scale()
    assert across(0) == 0
    assert down(3) == 0
    assert across(2) == across(4) / 2 > 0
    assert down(1) == down(-1) / 2 > 0


def test_the_picture_is_xml_with_every_curve() -> None:
    def flat(t: float) -> list[tuple[float, float]]:
        return [(-1.0, t), (1.0, t)]

    panel = wave_panel([0.0, 0.5], flat, flat)
    root = ElementTree.fromstring(svg([panel, panel]))
    name = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{name}polyline")) == 8
    words = [element.text for element in root.iter(f"{name}text")]
    assert words.count("exact") == 2
    assert "Burgers: u(x) at t = 0, 0.5" in words
