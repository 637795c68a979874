"""Ours against the runtimes, per network of the zoo, and what was asked for held against it.

Examples:
  python -m benchmarks.engine --wait 5 --json engine.json              the zoo, within twenty minutes
  python -m benchmarks.engine --models inception_v1,squeezenet         some of it
  python -m benchmarks.engine --models lstm --found all.json --json engine.json    beside what stands in all.json

Configurations: ONNX Runtime with 1, 2, 4, 8, ... and all threads, and its parallel mode; OpenVINO, where it is
installed, with all threads (and HETERO where it has several devices); ours as ``Session.run`` answers, and the plan
before any fallback. ``--load N`` keeps N other processes busy meanwhile; without it, only those rounds count beside
which a witness found the cores at full speed, as far as ``--patience`` allows, or the network's share of ``--minutes``.
Files are whole after every network, whatever becomes of the next. ``--segmentation`` also cuts every model on one core
into pieces of 16 super-ops and compares their sum with the whole.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hope_zoo as zoo
from agent_sdk.agent import Agent
from agent_sdk.errors import HopeError
from agent_sdk.journey.services import THOROUGH_S
from agent_sdk.machine.witness import Witness
from benchmarks import cli
from benchmarks.engine.judging import judge
from benchmarks.engine.measuring import rows_for
from benchmarks.engine.segmentation import loss
from benchmarks.results import circumstances, report

PROFILED, ENDED = 0.5, 0.8
"""Parts of a network's share of the minutes: in which it is profiled at most, and after which nothing is timed any more
but the rounds that there must be; then answers are checked."""


class OtherRunError(Exception):
    """A file says what another machine or commit does."""


def earlier(path: Path | None, here: Mapping[str, Any], again: Sequence[str]) -> dict[str, Any]:
    """What a file holds of networks that are not measured ``again``; nothing where there is none.

    Raises:
        OtherRunError: it is of another machine or commit.
    """
    if path is None or not path.exists():
        return {**here, "rows": [], "models": []}
    content: dict[str, Any] = json.loads(path.read_text())
    for name in ("machine", "commit"):
        if content["circumstances"][name] != here["circumstances"][name]:
            raise OtherRunError(f"{path} is of {content['circumstances'][name]}, not {here['circumstances'][name]}")
    kept = {part: [one for one in content[part] if one["model"] not in again] for part in ("rows", "models")}
    return {**here, **kept}


def show(rows: Sequence[Mapping[str, Any]], more: Mapping[str, Any]) -> None:
    """One line per row, then what else is to be said."""
    for row in rows:
        off = f"{row['prediction_error']:7.1%}" if row["prediction_error"] is not None else " " * 7
        print(
            f"{row['model']:<16} {row['config']:<15} {row['median_us'] / 1e3:9.2f} ms  {row['ratio_to_best_ort']:6.3f} "
            f"{row['ratio_to_best_single']:6.3f} {off}  {row['max_rel_error']:.1e}  "
            f"{row['segments']:4d} {'' if row['overlap'] is None else format(row['overlap'], '5.0%'):>5}  "
            f"{','.join(row['processors_used'])}",
            flush=True,
        )
    print(
        f"{'':<16} answered by {more['answered_by']}, planned {more['planned_us'] / 1e3:.2f} ms by "
        f"{more['method']}, predicted {more['predicted_us'] / 1e3:.2f} ms, "
        f"{sum(more['calm_runs'].values())} of {sum(more['runs'].values())} runs that count were calm"
    )
    if "segmentation" in more:
        print(f"{'':<16} pieces / whole on one core, by super-ops per piece: {more['segmentation']}")


def parser() -> cli.Parser:
    """The command line."""
    found = cli.measuring("engine", __doc__)
    found.add_argument("--models", type=cli.names, default=zoo.names(), help="networks of the zoo (default: all)")
    found.add_argument("--rounds", type=int, default=15, help="fewest timed rounds per model (default %(default)s)")
    found.add_argument("--processors", help="plan with these processors only")
    found.add_argument("--load", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    found.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="seconds to go on looking for calm runs, per model"
    )
    found.add_argument(
        "--minutes", type=float, default=20.0, metavar="M", help="for all networks together (default %(default)s)"
    )
    found.add_argument("--wait", type=float, metavar="S", help="let the planner improve each plan for up to S seconds")
    found.add_argument("--trace", type=Path, metavar="DIRECTORY", help="write a Perfetto trace of every plan there")
    found.add_argument("--segmentation", action="store_true", help="also measure what cutting costs on one core")
    found.add_argument("--found", type=cli.file, metavar="FILE", help="keep all that was found here, earlier runs' too")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 where a network failed, 2 for a file of another run."""
    command = parser()
    options = command.parse_args(arguments)
    names = options.models
    share_s = 60 * options.minutes / len(names)
    here = Agent(processors=options.processors, wait_s=options.wait, measuring_s=min(THOROUGH_S, PROFILED * share_s))
    machine = {"soc": here.soc.name, "cores": len(here.soc.cores), "processors": [spec.id for spec in here.planned]}
    try:
        content = earlier(options.found, {"circumstances": circumstances(), "machine": machine}, names)
    except OtherRunError as error:
        here.close()
        command.error(str(error))
    failed: list[str] = []
    print(f"{'model':<16} {'config':<15} {'median':>9}     / ort  / all   pred.  error   segments, overlap, processors")
    end = time.monotonic() + 60 * options.minutes
    with here as agent, Witness() as witness:
        watching = None if options.load else witness
        for done, name in enumerate(names):
            now = time.monotonic()
            until = now + ENDED * (end - now) / (len(names) - done)
            try:
                found, more = rows_for(
                    agent, name, options.rounds, options.load, watching, options.patience, until, options.trace
                )
            except HopeError as error:
                failed.append(name)
                print(f"{name:<16} failed: {error}", flush=True)
                continue
            if options.segmentation:
                more["segmentation"] = loss(name)
            show(found, more)
            content["rows"] += found
            content["models"].append(more)
            if options.found:
                whole = options.found.with_suffix(".part")
                whole.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
                whole.replace(options.found)
    if content["rows"]:
        measures, tables = judge(content)
        report(options.json, measures, tables)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
