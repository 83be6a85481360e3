"""Draw simulations as an SVG of two panels: bytes on disk above, bytes written below."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lastword.tools.simulate import Simulation
from lastword.units import format_bytes

WIDTH, HEIGHT = 800, 520
LEFT, RIGHT = 80, 780
PANELS = ((40, 220), (280, 460))  # top and bottom of each
COLORS = ("#1b6ca8", "#c8553d", "#588b3a", "#7a4fa3", "#a8821b")
_TEXT = "font-family:sans-serif;font-size:12px;fill:#333"


def picture(simulations: Sequence[Simulation], names: Sequence[str]) -> str:
    """Draw simulations, with `names` for the legend. The dashed line shows the live bytes: no log is
    smaller."""
    points = [point for simulation in simulations for point in simulation.curve]
    first = min((p.appended_bytes for p in points), default=0)
    last = max((p.appended_bytes for p in points), default=1)
    most = (max((p.size_bytes for p in points), default=1), max((p.written_bytes for p in points), default=1))
    axes = [_Axes(first, last, top, *panel) for top, panel in zip(most, PANELS, strict=True)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *axes[0].frame("on disk"),
        *axes[1].frame("written by cleaning"),
        _text(LEFT, HEIGHT - 40, f"{format_bytes(first)} appended"),
        _text(RIGHT, HEIGHT - 40, f"{format_bytes(last)}", "end"),
    ]
    if simulations:
        live = [(p.appended_bytes, p.live_bytes) for p in simulations[0].curve]
        parts.append(axes[0].line(live, "#999", dashed=True))
    for number, (simulation, name) in enumerate(zip(simulations, names, strict=True)):
        color = COLORS[number % len(COLORS)]
        parts.append(axes[0].line([(p.appended_bytes, p.size_bytes) for p in simulation.curve], color))
        parts.append(axes[1].line([(p.appended_bytes, p.written_bytes) for p in simulation.curve], color))
        at = LEFT + number * (RIGHT - LEFT) // max(len(names), 1)
        parts.append(f'<rect x="{at}" y="{HEIGHT - 24}" width="12" height="12" fill="{color}"/>')
        parts.append(_text(at + 18, HEIGHT - 14, name))
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axes:
    """A panel: appended bytes on the x axis, another number of bytes on the y axis, from 0."""

    def __init__(self, first: int, last: int, most: int, top: int, bottom: int) -> None:
        self.first, self.span = first, max(last - first, 1)
        self.most = max(most, 1)
        self.top, self.bottom = top, bottom

    def frame(self, title: str) -> list[str]:
        lines = [_text(LEFT, self.top - 10, title)]
        for share in (0.0, 0.5, 1.0):
            y = self.bottom - share * (self.bottom - self.top)
            lines.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#ddd" fill="none"/>')
            lines.append(_text(LEFT - 8, y + 4, format_bytes(round(share * self.most)), "end"))
        return lines

    def line(self, points: Sequence[tuple[int, int]], color: str, *, dashed: bool = False) -> str:
        shown = " ".join(
            f"{LEFT + (x - self.first) / self.span * (RIGHT - LEFT):.1f},"
            f"{self.bottom - y / self.most * (self.bottom - self.top):.1f}"
            for x, y in points
        )
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        return f'<polyline points="{shown}" fill="none" stroke="{color}" stroke-width="1.5"{dash}/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y:.1f}" text-anchor="{anchor}" style="{_TEXT}">{html.escape(text)}</text>'
