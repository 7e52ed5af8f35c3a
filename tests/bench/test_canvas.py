from __future__ import annotations

from dlite.bench.canvas import PARTS, axes, color_of, even, picture, point


def test_nothing_to_show_is_no_picture() -> None:
    assert picture("a", "label", lambda figure: False) == ""


def test_colours_become_the_pages_own() -> None:
    def paint(figure: object) -> bool:
        panel = axes(figure, "x")
        point(panel, {"value": 1.0, "low": 0.5, "high": 2.0}, 0, color_of(1), along="x")
        point(panel, {"value": 1.0, "low": None, "high": None}, 0, PARTS["prefill"], along="y")
        even(panel, "y")
        return True

    svg = picture("one", "a label", paint)
    assert svg.startswith('<svg role="img" aria-label="a label" ')
    for variable in ("arm-1", "part-prefill", "soft", "line"):
        assert f"var(--{variable})" in svg
    assert "#0101" not in svg
    assert color_of(7) == color_of(1)
