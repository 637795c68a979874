"""Device, edge and cloud: one network over three hosts whose links are shaped, by every method that plans over hosts.

    sudo python -m benchmarks.namespaces [--models alexnet,resnet18] [--links wifi,4g,5g] [--minutes 14] [--json FILE]

The hosts are network namespaces of this machine, made for this and removed afterwards, which takes root; elsewhere it
says so and measures nothing. Their links have the bandwidths of D3's Table III (Mbps), shaped by ``tc`` (tbf) both
ways. Their speeds are shares of a core (cgroup quotas): ``rows.SHARES``. Device and edge have a core each, the cloud
shares the edge's. All is so while runs are timed and links measured. Figures are measured at full speed, and count for
what they take at a host's share: a quota stops a host for as long as many ops take together, which the profiler takes
for a disturbance. Ours may let float32 cross links as float16; single tiers and the methods of others send float32, as
their papers have it.

First VGG-16's convolutions are computed over four hosts on Gigabit Ethernet and on one (`rows.SIDE_BY_SIDE`), then
pictures are sent over the Wi-Fi link, then come networks and links one by one; none begins that would not end within
``--minutes``. Results are written after each, so that a run that is cut off keeps what it has found.
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
from benchmarks.namespaces.hosts import DEVICE, HOSTS, inside, lending, possible, spaces
from benchmarks.results import Measure, Table, report, verdict

MODELS: Final = ("alexnet", "resnet18", "vgg16", "darknet53", "inception_v4")
PARTS: Final = ("tiles", "pictures", "rows")
METHODS: Final = ("auto", *rows.OTHERS)
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
    for link, name in itertools.product(options.links, options.models if "rows" in options.parts else ()):
        began = time.monotonic()
        if began + longest > end:
            print(f"namespaces: no time is left for {name} over {link}", file=sys.stderr, flush=True)
            continue
        found("row", rows.row(name, link, runs, folder))
        longest = max(longest, time.monotonic() - began)


def judged(found: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """What has to hold of all that was found so far."""
    of: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in ("row", "tiles", "pictures")}
    for one in found:
        of[one["kind"]].append(one)
    measures = []
    if done := of["row"]:
        single = [row["ours"] / min(row[tier] for tier in rows.SHARES) for row in done]
        measures += [
            verdict("ours ÷ the best single tier, mean", statistics.mean(single), MEAN),
            verdict("ours ÷ the best single tier, worst", max(single), NEVER),
        ]
        for method in rows.OTHERS:
            ratio = statistics.mean(row["ours"] / row[method] for row in done)
            measures.append(verdict(f"ours ÷ {method}, mean", ratio, OTHERS))
        backbone = statistics.mean(row["ours bytes"] / row["cloud bytes"] for row in done)
        measures.append(verdict("bytes over the backbone ÷ cloud only, mean", backbone, BACKBONE))
        off = statistics.mean(abs(row["ours"] / row["ours planned"] - 1) for row in done)
        measures.append(verdict("planned against measured, mean difference", off, TRUTH))
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
    columns = ["network", "link", *rows.SHARES, *METHODS, "ours", "ours planned", "bound"]
    shown = [
        [row[column] if column in ("network", "link") else round(row[column] / 1e3, 1) for column in columns]
        for row in found
        if row["kind"] == "row"
    ]
    report(path, judged(found), [Table("Latency, ms", columns, shown)], found=found, shares=rows.SHARES)


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
    parser.add_argument("--links", type=cli.names, default=list(rows.LINKS))
    parser.add_argument("--parts", type=cli.names, default=list(PARTS), help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=14.0, help="by which the last row is to end; default: 14")
    parser.add_argument("--seconds", type=float, default=100.0, help="of pictures")
    parser.add_argument("--on-device", type=Path, help="what the program starts itself with, in the device's namespace")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    if options.on_device is not None:
        on_device(options, end)
        return
    if not possible():
        print("namespaces: this takes root, and a kernel with cgroups of version 1: nothing was measured")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed then, too
    found: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as name, spaces(), ExitStack() as serving:
            for host in HOSTS:
                serving.enter_context(lending(host, Path(name)))
            command = [sys.executable, "-m", "benchmarks.namespaces", "--on-device", name, "--runs", str(options.runs)]
            command += ["--models", ",".join(options.models), "--links", ",".join(options.links)]
            command += ["--parts", ",".join(options.parts)]
            command += ["--seconds", str(options.seconds), "--minutes", str((end - time.monotonic()) / 60)]
            for line in lines(inside(DEVICE, *command)):
                print(line, end="", flush=True)
                found.append(json.loads(line))
                with redirect_stdout(StringIO()):
                    written(options.json, found)
    finally:
        written(options.json, found)


if __name__ == "__main__":
    main()
