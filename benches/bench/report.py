"""One self-contained HTML page: a table, and a plot for each suite. No resource from elsewhere."""

import html
import os
import time

from .rows import KERNEL, KNET
from .table import number, verdict

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222; background: #fff; }
h2 { margin-top: 2em; } table { border-collapse: collapse; font-size: 13px; width: 100%; }
td, th { padding: .2em .6em; text-align: right; border-bottom: 1px solid #ddd; } td:first-child, th:first-child { text-align: left; }
.pass { color: #0a7d33; } .FAIL { color: #b3261e; font-weight: bold; } .noisy { color: #946200; } p.note { color: #555; font-size: 13px; }
svg text { font: 12px system-ui, sans-serif; fill: #222; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } td, th { border-color: #333; } svg text { fill: #ddd; }
  p.note { color: #aaa; } .pass { color: #5fd38a; } .FAIL { color: #ff8a80; } .noisy { color: #e0b050; } }
"""
COLOUR = {KERNEL: "#8a8f98", KNET: "#2f6fde"}
WIDTH, LABEL, BAR, GAP = 1000, 420, 12, 12


def bars(rows):
    """A group of two bars a row, drawn to the larger of the two, with the raw rounds as dots."""
    height = len(rows) * (2 * BAR + GAP) + 30
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="kernel and knet, medians and rounds">']
    room = WIDTH - LABEL - 150
    y = 6
    for row in rows:
        raw = {side: row["raw"].get(side, []) for side in (KERNEL, KNET)}
        most = max([value for side in raw.values() for value in side] + [row[side] or 0 for side in (KERNEL, KNET)]) or 1
        name = html.escape(f"{row['case']} ({row['unit']})")
        parts.append(f'<text x="{LABEL - 8}" y="{y + BAR + 4}" text-anchor="end">{name if len(name) < 70 else name[:67] + "..."}</text>')
        for at, side in enumerate((KERNEL, KNET)):
            value = row[side]
            if value is None:
                continue
            top = y + at * BAR
            length = max(1, room * value / most)
            parts.append(f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR - 2}" fill="{COLOUR[side]}">'
                         f"<title>{side}: {value:.3f} {html.escape(row['unit'])}</title></rect>")
            for dot in raw[side][:200]:
                parts.append(f'<circle cx="{LABEL + room * dot / most:.1f}" cy="{top + BAR / 2 - 1}" r="2" fill="none" stroke="#111"/>')
            parts.append(f'<text x="{LABEL + room + 8}" y="{top + BAR - 2}">{value:.4g}</text>')
        y += 2 * BAR + GAP
    for at, side in enumerate((KERNEL, KNET)):
        parts.append(f'<rect x="{LABEL + at * 100}" y="{y}" width="10" height="10" fill="{COLOUR[side]}"/>'
                     f'<text x="{LABEL + at * 100 + 16}" y="{y + 10}">{side}</text>')
    return "".join([*parts, "</svg>"])


def table(rows):
    head = "".join(f"<th>{name}</th>" for name in ("case", "unit", "ratio", "kernel", "knet", "spread", "bound", "goal", "verdict", "served", "alone"))
    lines = []
    for row in rows:
        word = verdict(row)
        served = f"{row['served_by_stack']:.0%}" if "served_by_stack" in row else ""
        alone = f"{row['calm']:.0%}" if "calm" in row else ""
        cells = [html.escape(row["case"]), html.escape(row["unit"]), number(row["ratio"]), number(row["kernel"]), number(row["knet"]),
                 number(row["spread"]), number(row["bound"]), number(row["goal"]), f'<span class="{word}">{word}</span>', served, alone]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def page(rows):
    judged = [verdict(row) for row in rows]
    parts = ["<!doctype html><html lang='en'><meta charset='utf-8'><title>knet benchmark</title>", f"<style>{STYLE}</style>",
             "<h1>knet benchmark</h1>",
             f"<p class='note'>{time.strftime('%Y-%m-%d %H:%M')}; {os.cpu_count()} CPUs, Linux {os.uname().release}; "
             f"{judged.count('pass')} passed, {judged.count('FAIL')} failed, {judged.count('noisy')} noisy. Kernel and shim take turns; "
             "bars are medians, circles single rounds. A row whose (max - min) / median is above 0.3 is noisy and judged neither way. "
             "Alone: the share of measurements for which no neighbour had a part of the CPUs.</p>"]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == suite]
        notes = {f"progress {row['progress']}: {', '.join(row.get('threads', []))}" for row in mine if "progress" in row}
        parts += [f"<h2>{suite}</h2>", *(f"<p class='note'>{html.escape(note)}</p>" for note in sorted(notes)), bars(mine), table(mine)]
    return "".join([*parts, "</html>"])


def write(rows, folder):
    """Writes the page and returns its path."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "index.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(rows))
    return path
