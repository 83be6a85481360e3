"""Draw a log before and after a cleaning as SVG text, without a library; any browser shows it.

Every segment is a box. Its width is its range of offsets and its area is its bytes, so its height is bytes
per offset; the lower part is live, the upper part dead. All rows of both halves share one scale, so the area
removed is the bytes removed. No record moves left or right, because offsets do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

LIVE, DEAD, INK, FAINT, PAPER, LANE = "#0f766e", "#f0b65a", "#1f2937", "#6b7280", "#ffffff", "#f3f4f6"
WIDTH, LEFT, RIGHT = 1080, 96, 200
LANE_HEIGHT, MIN_LANE_HEIGHT, LANE_GAP = 52, 24, 14
PLOT = WIDTH - LEFT - RIGHT
FONT = "font-family=\"ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif\""


@dataclass(frozen=True)
class Segment:
    """A segment with offsets base_offset <= o < next_offset and live_bytes + dead_bytes bytes."""

    base_offset: int
    next_offset: int
    live_bytes: int
    dead_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.live_bytes + self.dead_bytes


Log = Mapping[int, Sequence[Segment]]
"""partition -> its segments in offset order"""


def draw(title: str, before: Log, after: Log) -> str:
    """Return the whole picture as SVG text."""
    last_offset = max(
        (s.next_offset for log in (before, after) for lane in log.values() for s in lane), default=1
    )
    densest = max(density(before), density(after), 1e-9)
    parts: list[str] = []
    y = 34
    parts.append(text(LEFT, y, title, size=20, weight=600))
    y += 24
    parts.append(text(LEFT, y, "each box is a segment: width = offsets, area = bytes", fill=FAINT))
    parts += legend(WIDTH - RIGHT - 150, y)
    for name, log in (("before", before), ("after", after)):
        y += 40
        parts.append(text(LEFT, y, f"{name} cleaning", size=15, weight=600))
        parts.append(text(WIDTH - RIGHT + 16, y, summary(log), size=13, weight=600))
        y += 12
        height = max(MIN_LANE_HEIGHT, LANE_HEIGHT * density(log) / densest)
        for partition, lane in sorted(log.items()):
            parts += draw_lane(partition, lane, y, height, last_offset, LANE_HEIGHT / densest)
            y += height + LANE_GAP
        y += 2
        parts += axis(y - LANE_GAP, last_offset)
        y += 14
    y += 34
    parts += totals(y, before, after)
    height = y + 76
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" {FONT}>'
    )
    about = f"<title>{escape(title)}</title>"
    paper = f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>'
    return "\n".join([head, about, paper, *parts, "</svg>"]) + "\n"


def density(log: Log) -> float:
    """Return the bytes per offset of the densest segment."""
    lanes = log.values()
    return max(
        (s.size_bytes / max(s.next_offset - s.base_offset, 1) for lane in lanes for s in lane), default=0.0
    )


def draw_lane(
    partition: int, lane: Sequence[Segment], y: float, lane_height: float, last_offset: int, scale: float
) -> list[str]:
    """Draw one partition: its name, its boxes, its bytes. `scale` is pixels of height per byte per offset."""
    middle = y + lane_height / 2
    parts = [
        text(LEFT - 12, middle + 5, f"partition {partition}", fill=FAINT, anchor="end"),
        rect(LEFT, y, PLOT, lane_height, LANE),
    ]
    for segment in lane:
        offsets = segment.next_offset - segment.base_offset
        if offsets <= 0 or segment.size_bytes <= 0:
            continue
        x = LEFT + PLOT * segment.base_offset / last_offset
        width = PLOT * offsets / last_offset
        gap = 1.5 if width > 4 else 0.4
        height = scale * segment.size_bytes / offsets
        live = scale * segment.live_bytes / offsets
        if segment.live_bytes:
            live = max(live, 1.2)  # so that a live record is always visible
        dead = max(height - live, 0)
        bottom = y + lane_height
        hint = (
            f"offsets {segment.base_offset:,} to {segment.next_offset - 1:,}: "
            f"{size(segment.live_bytes)} live, {size(segment.dead_bytes)} dead"
        )
        boxes = ""
        if segment.dead_bytes:
            boxes += rect(x, bottom - live - dead, width - gap, dead, DEAD)
        if segment.live_bytes:
            boxes += rect(x, bottom - live, width - gap, live, LIVE)
        parts.append(f"<g><title>{escape(hint)}</title>{boxes}</g>")
    x = WIDTH - RIGHT + 16
    parts.append(text(x, middle - 3, f"{total(lane)} in {plural(len(lane), 'segment')}"))
    parts.append(text(x, middle + 14, share(*sums([lane])), fill=FAINT))
    return parts


def axis(y: float, last_offset: int) -> list[str]:
    """Draw the offsets along the bottom of a half."""
    parts = [line(LEFT, y + 4, LEFT + PLOT, y + 4)]
    step = nice_step(last_offset / 5)
    offset = 0
    while offset <= last_offset:
        x = LEFT + PLOT * offset / last_offset
        parts.append(line(x, y + 4, x, y + 9))
        label = f"offset {offset:,}" if offset == 0 else f"{offset:,}"
        parts.append(text(x, y + 22, label, size=11, fill=FAINT, anchor="middle" if offset else "start"))
        offset += step
    return parts


def totals(y: float, before: Log, after: Log) -> list[str]:
    """Draw two bars of all bytes, on one scale."""
    most = max(sum(sums(before.values())), 1)
    parts = [text(LEFT, y, "all bytes", size=15, weight=600)]
    for row, (name, log) in enumerate((("before", before), ("after", after))):
        top = y + 12 + row * 28
        live, dead = sums(log.values())
        live_width, dead_width = max(PLOT * live / most, 1.2), PLOT * dead / most
        parts.append(text(LEFT - 12, top + 15, name, fill=FAINT, anchor="end"))
        parts.append(rect(LEFT, top, live_width, 20, LIVE))
        if dead:
            parts.append(rect(LEFT + live_width, top, dead_width, 20, DEAD))
        label_x = LEFT + live_width + dead_width + 8
        parts.append(text(min(label_x, WIDTH - RIGHT + 16), top + 15, size(live + dead), weight=600))
    return parts


def legend(x: float, y: float) -> list[str]:
    return [
        rect(x, y - 10, 12, 12, LIVE),
        text(x + 18, y, "live", fill=FAINT),
        rect(x + 66, y - 10, 12, 12, DEAD),
        text(x + 84, y, "superseded", fill=FAINT),
    ]


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{FAINT}"/>'


def rect(x: float, y: float, width: float, height: float, fill: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.3):.2f}" height="{height:.2f}" fill="{fill}"/>'
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 13,
    weight: int = 400,
    fill: str = INK,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}" '
        f'text-anchor="{anchor}">{escape(words)}</text>'
    )


def nice_step(rough: float) -> int:
    """Return 1, 2 or 5 times a power of ten, at least `rough`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= rough:
                return factor * power
        power *= 10


def sums(lanes: Iterable[Sequence[Segment]]) -> tuple[int, int]:
    """Return the (live, dead) bytes of all segments."""
    flat = [s for lane in lanes for s in lane]
    return sum(s.live_bytes for s in flat), sum(s.dead_bytes for s in flat)


def total(lane: Sequence[Segment]) -> str:
    return size(sum(s.size_bytes for s in lane))


def summary(log: Log) -> str:
    live, dead = sums(log.values())
    return f"{size(live + dead)}, {share(live, dead)}"


def share(live: int, dead: int) -> str:
    whole = live + dead
    return f"{100 * live / whole:.3g} % live" if whole else "empty"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(number: int) -> str:
    """Format bytes for people, in powers of 1024."""
    value = float(number)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}" if unit != "B" else f"{number} B"
        value /= 1024
    return f"{value:.3g} GiB"
