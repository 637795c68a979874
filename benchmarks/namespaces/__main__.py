"""Device, edge and cloud: one network over three hosts whose links are shaped, by every method that plans over hosts.

    sudo python -m benchmarks.namespaces [--models alexnet,resnet18] [--links wifi,4g,5g] [--edges 1,2,4]
        [--parts tiles,pictures,rows] [--minutes 14] [--keep FOLDER] [--json FILE]

The hosts are network namespaces of this machine, made for this and removed afterwards, which takes root; elsewhere it
says so and measures nothing. Their links have the bandwidths of D3's Table III (Mbps), shaped by ``tc`` (tbf) both
ways. Edges, up to four, are behind the device's one radio; the cloud has a link of its own. Their speeds are shares of
a core (cgroup quotas): ``rows.shares_of``. The device has a core, the others share one. All is so while runs are timed
and links measured. Figures are measured at full speed, and count for what they take at a host's share: a quota stops a
host for as long as many ops take together, which the profiler takes for a disturbance. Ours may let float32 cross links
as float16; single tiers and the methods of others send float32, as their papers have it.

First VGG-16's convolutions are computed over four hosts on Gigabit Ethernet and on one (`rows.SIDE_BY_SIDE`), then
pictures are sent over the Wi-Fi link, then come networks and links one by one; none begins that would not end within
``--minutes``. Results are written after each, so that a run that is cut off keeps what it has found. What stands in
``FILE`` of other networks, links or parts stays there, with the commit that each was measured on: a table may be
measured link by link. In ``FOLDER`` stays what was measured of networks and machines: nobody measures it again. Plans
stay with it, so that a planner that has changed takes another folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, Final

from benchmarks import cli
from benchmarks.namespaces import rows
from benchmarks.namespaces.hosts import DEVICE, EDGES, HOSTS, inside, lending, possible, spaces
from benchmarks.results import Measure, Table, circumstances, report, verdict

MODELS: Final = ("alexnet", "resnet18", "vgg16", "darknet53", "inception_v4")
PARTS: Final = ("tiles", "pictures", "rows")
MEAN: Final = 0.60
NEVER: Final = 1.02
OTHERS: Final = 0.95
BACKBONE: Final = 0.6
TRUTH: Final = 0.10
TILES: Final = 0.45
TAIL: Final = 3.0


def on_device(options: argparse.Namespace, end: float) -> None:
    """Print what is measured in the device's namespace, a line of JSON each."""
    folder, runs = options.on_device, options.runs

    def found(kind: str, one: Mapping[str, Any]) -> None:
        print(json.dumps({"kind": kind, **one}), flush=True)

    if "tiles" in options.parts:
        found("tiles", rows.tiles(runs, folder))
    if "pictures" in options.parts:
        found("pictures", rows.camera(options.seconds, folder))
    longest = 0.0
    models = options.models if "rows" in options.parts else ()
    for edges, link, name in itertools.product(options.edges, options.links, models):
        began = time.monotonic()
        if began + longest > end:
            print(f"namespaces: no time is left for {name} over {link}, {edges} edges", file=sys.stderr, flush=True)
            continue
        try:
            found("row", rows.row(name, link, edges, runs, folder))
        except rows.NoPlanError as error:
            print(f"namespaces: no plan of {name} over {link}, {edges} edges: {error}", file=sys.stderr, flush=True)
        longest = max(longest, time.monotonic() - began)


def judged(found: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """What has to hold of all that was found so far."""
    of: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in ("row", "tiles", "pictures")}
    for one in found:
        of[one["kind"]].append(one)
    measures = []
    for edges in sorted({row["edges"] for row in of["row"]}):
        done = [row for row in of["row"] if row["edges"] == edges]
        what = "one edge" if edges == 1 else f"{edges} edges"
        single = [row["ours"] / min(row[tier] for tier in rows.TIERS) for row in done]
        measures += [
            verdict(f"{what}: ours ÷ the best single tier, mean", statistics.mean(single), MEAN),
            verdict(f"{what}: ours ÷ the best single tier, worst", max(single), NEVER),
        ]
        for method in rows.methods_of(edges):
            # what stands from before knows no method that came later
            if ratios := [row["ours"] / row[method] for row in done if method in row]:
                measures.append(verdict(f"{what}: ours ÷ {method}, mean", statistics.mean(ratios), OTHERS))
        backbone = statistics.mean(row["ours bytes"] / row["cloud bytes"] for row in done)
        measures.append(verdict(f"{what}: bytes over the backbone ÷ cloud only, mean", backbone, BACKBONE))
        off = statistics.mean(abs(row["ours"] / row["ours planned"] - 1) for row in done)
        measures.append(verdict(f"{what}: planned against measured, mean difference", off, TRUTH))
    for tiles in of["tiles"]:
        ratio = tiles["four hosts"] / tiles["one host"]
        measures.append(verdict("VGG-16's convolutions, four hosts ÷ one", ratio, TILES))
    for sent in of["pictures"]:
        measures.append(
            verdict(f"{rows.FRAMES} pictures a second over Wi-Fi: lost of {sent['frames']}", sent["lost"], 0)
        )
        measures.append(verdict("their latency, p99 ÷ p50", sent["p99 ms"] / sent["p50 ms"], TAIL))
    return measures


def written(path: Path | None, found: Sequence[Mapping[str, Any]]) -> None:
    """Print and write what was found so far."""
    tables = []
    counts = sorted({row["edges"] for row in found if row["kind"] == "row"})
    for edges in counts:
        said = ["network", "link"]
        timed = [*rows.TIERS, "auto", *rows.methods_of(edges), "ours", "ours planned", "bound"]
        shown = [
            [
                *(row[column] for column in said),
                *(round(row[column] / 1e3, 1) if column in row else None for column in timed),
            ]
            for row in found
            if row["kind"] == "row" and row["edges"] == edges
        ]
        tables.append(Table(f"Latency, ms, edges: {edges}", [*said, *timed], shown))
    report(path, judged(found), tables, found=found, shares={edges: rows.shares_of(edges) for edges in counts})


def standing(path: Path | None) -> list[dict[str, Any]]:
    """What a file says that was found before."""
    if path is None or not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text())["found"]
    return found


def beside(before: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What was found, and before it what was before of anything else."""

    def subject(one: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(one.get(key) for key in ("kind", "network", "link", "edges"))

    anew = {subject(one) for one in found}
    return [*(one for one in before if subject(one) not in anew), *found]


def lines(command: Sequence[str]) -> Iterator[str]:
    """What a program says, line by line. Raises CalledProcessError where it fails; it ends with who reads it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield from process.stdout
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def main() -> None:
    """Run every row, within the time."""
    parser = cli.measuring("namespaces", __doc__)
    parser.add_argument("--models", type=cli.names, default=list(MODELS))
    parser.add_argument("--links", type=cli.names, default=list(rows.BACKBONE_MBPS))
    parser.add_argument("--edges", type=cli.names, default=["1", "4"], help="how many, some counts; default: 1,4")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where profiles and plans stay; default: nowhere")
    parser.add_argument("--parts", type=cli.names, default=list(PARTS), help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=14.0, help="by which the last row is to end; default: 14")
    parser.add_argument("--seconds", type=float, default=100.0, help="of pictures")
    parser.add_argument("--on-device", type=Path, help="what the program starts itself with, in the device's namespace")
    options = parser.parse_args()
    known = {"--edges": [str(1 + k) for k in range(len(EDGES))], "--links": rows.BACKBONE_MBPS, "--parts": PARTS}
    for option, able in known.items():
        if wrong := [one for one in getattr(options, option[2:]) if one not in able]:
            parser.error(f"{option} {','.join(wrong)}: there are {', '.join(able)}")
    options.edges = [int(count) for count in options.edges]
    end = time.monotonic() + 60 * options.minutes
    if options.on_device is not None:
        on_device(options, end)
        return
    if not possible():
        print("namespaces: this takes root, and a kernel with cgroups of version 1: nothing was measured")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed then, too
    before, found, here = standing(options.json), list[dict[str, Any]](), circumstances()
    try:
        with tempfile.TemporaryDirectory() as emptied, spaces(), ExitStack() as serving:
            folder: Path = options.keep or Path(emptied)
            folder.mkdir(parents=True, exist_ok=True)
            for host in HOSTS:
                serving.enter_context(lending(host, folder))
            command = [sys.executable, "-m", "benchmarks.namespaces", "--on-device", str(folder)]
            command += ["--runs", str(options.runs)]
            command += ["--models", ",".join(options.models), "--links", ",".join(options.links)]
            command += ["--parts", ",".join(options.parts), "--edges", ",".join(map(str, options.edges))]
            command += ["--seconds", str(options.seconds), "--minutes", str((end - time.monotonic()) / 60)]
            for line in lines(inside(DEVICE, *command)):
                print(line, end="", flush=True)
                found.append(json.loads(line) | {"commit": here["commit"], "date": here["date"]})
                with redirect_stdout(StringIO()):
                    written(options.json, beside(before, found))
    finally:
        written(options.json, beside(before, found))


if __name__ == "__main__":
    main()
