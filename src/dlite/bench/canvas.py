"""What pictures share: SVG that takes its colours and fonts from the page around it, light or dark."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

# Drawn in stand-in colours, which become the page's CSS variables.
INK, SOFT, LINE = "#010101", "#010102", "#010103"
PARTS = {"prefill": "#010107", "verify": "#010104", "draft": "#010105", "other": "#010106"}
ARMS = tuple(f"#0101{16 + i:02x}" for i in range(6))
VARIABLES = {INK: "ink", SOFT: "soft", LINE: "line"} | {color: f"part-{name}" for name, color in PARTS.items()}
VARIABLES |= {color: f"arm-{i}" for i, color in enumerate(ARMS)}
WIDTH = 8.6
FONT = 10.5

Estimate = dict[str, float | None]


def picture(name: str, label: str, paint: Callable[[Any], bool]) -> str:
    """The SVG that ``paint`` draws on a matplotlib figure, or '' where it says there is nothing to show."""
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": name, "font.size": FONT, "text.color": INK}
    settings |= {"axes.labelcolor": SOFT, "xtick.color": SOFT, "ytick.color": INK, "lines.linewidth": 1.8}
    with matplotlib.rc_context(settings):
        figure = Figure(layout="constrained")
        if not paint(figure):
            return ""
        buffer = StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _themed(buffer.getvalue(), name, label)


def axes(figure: Any, grid: str, place: int = 1, of: int = 1, share: Any = None) -> Any:
    """A panel without frame, with light grid lines along one axis."""
    panel = figure.add_subplot(1, of, place, sharey=share)
    for side in panel.spines.values():
        side.set_visible(False)
    panel.tick_params(length=0, pad=6)
    panel.grid(axis=grid, color=LINE, lw=0.8)
    panel.set_axisbelow(True)
    return panel


def point(panel: Any, estimate: Estimate, place: float, color: str, *, along: str) -> None:
    """A value with its 95% interval."""
    if estimate["low"] is not None:
        span, here = [estimate["low"], estimate["high"]], [place, place]
        panel.plot(*((span, here) if along == "x" else (here, span)), color=color, lw=2, solid_capstyle="round")
    at = (estimate["value"], place) if along == "x" else (place, estimate["value"])
    panel.plot(*at, "o", color=color, ms=6.5)


def even(panel: Any, along: str) -> None:
    """The dashed line at 1, where plain decoding is."""
    line = panel.axhline if along == "x" else panel.axvline
    line(1, color=SOFT, lw=1, ls=(0, (3, 3)))


def percent(set_ticks: Callable[..., Any]) -> None:
    """Ticks of a share, from 0 to 100%."""
    set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "25%", "50%", "75%", "100%"])


def color_of(number: int) -> str:
    """The stand-in of an arm's colour."""
    return ARMS[number % len(ARMS)]


def _themed(svg: str, name: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    svg = re.sub(r"font: ((?:\d+ )?[\d.]+px) [^;\"]+", r"font: \1 var(--sans)", svg)
    # Ids must be unique in the page that holds all pictures.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()
