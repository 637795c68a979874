"""One chart of what is gained where: ``docs/images/gains.svg``, made of ``benchmarks/results/*.json``.

A strip per kind of machine. A dot is a network (on phones: a network and its cores): our time over the rival's, to the
left of the line where we are faster. The networks where nothing is gained stand in it like all others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from xml.sax.saxutils import escape

WIDTH, STRIP, TOP, BOTTOM, MARGIN = 860, 84, 14, 40, 30
"""Pixels: the chart's width, a strip's height, what stands above and below the strips, and beside the axis."""
LETTER = 6.8
"""Pixels: the width of a letter of a label, on average."""
LEAST, MOST = 0.35, 1.25
"""The axis, in logarithms; a ratio beyond is drawn at its end."""


@dataclass(frozen=True)
class Strip:
    """Where the ratios of a kind of machine stand: columns of the first table of a file."""

    title: str
    file: str
    ours: str
    rivals: tuple[str, ...]
    name: tuple[str, ...]
    only: tuple[str, str] | None = None

    def ratios(self, folder: Path) -> dict[str, float]:
        """Return ours over the best of the rivals, by name; rows without a rival's figure are left out."""
        table = json.loads((folder / self.file).read_text())["tables"][0]
        rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
        if self.only:
            rows = [row for row in rows if row[self.only[0]] == self.only[1]]
        found: dict[str, float] = {}
        for row in rows:
            rivals = [_number(row, rival) for rival in self.rivals if row[rival] is not None]
            if rivals:
                found[" ".join(row[part] for part in self.name)] = _number(row, self.ours) / min(rivals)
        return found


ORT = ("ort_1", "ort_all", "ort_parallel")
STRIPS = (
    Strip(
        "H100 and H200, fp16: over the better of torch's own calls in one CUDA graph and torch.compile",
        "gpu.json",
        "auto",
        ("fastest other",),
        ("network",),
        ("precision", "fp16"),
    ),
    Strip(
        "16 cores: over the best setting of ONNX Runtime",
        "engine.json",
        "ours",
        (*ORT, "ort_2", "ort_4", "ort_8"),
        ("milliseconds",),
    ),
    Strip(
        "Two cores: over the best of ONNX Runtime and OpenVINO",
        "engine-two-cores.json",
        "ours",
        (*ORT, "openvino_all"),
        ("milliseconds",),
    ),
    Strip(
        "Phones' CPU and GPU, simulated from measured profiles: over the faster of the two alone",
        "phones.json",
        "auto",
        ("single",),
        ("profile", "CPU"),
    ),
    Strip(
        "The same phones: over the plans that the authors of HOPE published",
        "phones.json",
        "auto",
        ("authors' HOPE:LP",),
        ("profile", "CPU"),
    ),
)


def chart(folder: Path) -> str:
    """Return the chart as SVG; its colours are seen on white and on black."""
    height = TOP + STRIP * len(STRIPS) + BOTTOM
    foot = height - BOTTOM + 18
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#7a7f87">',
        "<title>Our time over the strongest rival's, network by network</title>",
    ]
    for ratio in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2):
        even = ratio == 1.0
        parts += [
            f'<line x1="{_x(ratio):.1f}" x2="{_x(ratio):.1f}" y1="{TOP}" y2="{height - BOTTOM}" '
            f'stroke="{"#c2410c" if even else "#7a7f87"}" stroke-opacity="{1 if even else 0.25}"/>',
            f'<text x="{_x(ratio):.1f}" y="{foot}" text-anchor="middle">{"as fast" if even else ratio}</text>',
        ]
    parts.append(f'<text x="{MARGIN}" y="{foot + 16}">← ours takes less time</text>')
    for number, strip in enumerate(STRIPS):
        parts += _strip(strip, strip.ratios(folder), TOP + number * STRIP)
    return "\n".join([*parts, "</svg>", ""])


def _strip(strip: Strip, ratios: Mapping[str, float], y: int) -> list[str]:
    mean, middle = geometric_mean(ratios.values()), y + 46
    best, worst = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    return [
        f'<text x="{MARGIN}" y="{y + 18}" font-size="13" font-weight="600">{escape(strip.title)}: {mean:.2f}</text>',
        *(
            f'<circle cx="{_x(ratio):.1f}" cy="{middle}" r="5" fill="#2563eb" fill-opacity="0.55">'
            f"<title>{escape(name)}: {ratio:.2f}</title></circle>"
            for name, ratio in sorted(ratios.items())
        ),
        f'<path d="M{_x(mean):.1f} {middle - 10}v20" stroke="#2563eb" stroke-width="3"/>',
        _label(f"{best} {ratios[best]:.2f}", _x(ratios[best]), middle + 20, "end"),
        _label(f"{worst} {ratios[worst]:.2f}", _x(ratios[worst]), middle + 20, "start"),
    ]


def _label(text: str, x: float, y: float, anchor: str) -> str:
    """A text beside its dot, to the left (its end) or the right (its start); at the margin where that has no room."""
    width = LETTER * len(text)
    if anchor == "end" and x - width < MARGIN:
        x, anchor = MARGIN, "start"
    elif anchor == "start" and x + width > WIDTH - MARGIN:
        x, anchor = WIDTH - MARGIN, "end"
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(ratio: float) -> float:
    share = (log2(min(max(ratio, LEAST), MOST)) - log2(LEAST)) / (log2(MOST) - log2(LEAST))
    return MARGIN + share * (WIDTH - 2 * MARGIN)


def _number(row: Mapping[str, Any], column: str) -> float:
    return float(str(row[column]).rstrip("*"))
