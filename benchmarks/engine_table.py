"""What ``benchmarks.engine`` found on a machine with many cores, held against what was asked for.

    python -m benchmarks.engine_table RESULTS/engine-*.json --json benchmarks/results/engine.json

Takes the files of ``benchmarks/many_cores.sh``, one per network and all of one machine and commit.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Measure, Table, verdict, write

Row = dict[str, Any]
SLOWER = 1.03
"""No network may take more than so many times what the best plain configuration takes."""


def verdicts(networks: dict[str, dict[str, Row]], facts: dict[str, Row]) -> list[Measure]:
    """The rows that must hold; ``networks`` are configurations by name, by network."""
    found = []
    for name, rows in networks.items():
        ours, planned = rows["ours"], rows["ours_planned"]
        best = min((config for config in rows if config.startswith("ort_")), key=lambda one: rows[one]["median_us"])
        answered = facts[name]["answered_by"]
        ratio = ours["ratio_to_best_ort"]
        found += [
            verdict(f"{name}: ours ({answered}) / best ONNX Runtime ({best})", ratio, SLOWER),
            verdict(f"{name}: the plan, as the planner timed it, against measured", planned["planner_error"], 0.08),
            verdict(f"{name}: the plan, as it was tried at load, against measured", planned["prediction_error"], 0.08),
            verdict(f"{name}: largest error of the answer", ours["max_rel_error"], 1e-3),
        ]
    ratios = [rows["ours"]["ratio_to_best_ort"] for rows in networks.values()]
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    parallel = [rows["ours"] for rows in networks.values() if (rows["ours"]["overlap"] or 0.0) >= 1 / 3]
    won = sum(row["ratio_to_best_ort"] <= 0.85 for row in parallel)
    found.append(verdict(f"ours / best ONNX Runtime, geometric mean of {len(ratios)}", mean, 0.85))
    found.append(verdict("networks <= 0.85 with two or more at work for a third of the run", won, 4, at_least=True))
    return found


def table(networks: dict[str, dict[str, Row]], facts: dict[str, Row]) -> Table:
    """What everything takes."""
    configurations = list(next(iter(networks.values())))
    plain = [config for config in configurations if not config.startswith("ours")]
    columns = ["milliseconds", *plain, "ours", "the plan", "planned", "lower bound", "overlap of the plan", "segments"]
    lines: list[list[str | float | None]] = []
    for name, rows in networks.items():
        planned = rows["ours_planned"]
        us = [rows[config]["median_us"] if config in rows else None for config in [*plain, "ours", "ours_planned"]]
        us += [facts[name]["planned_us"], facts[name]["lower_bound_us"]]
        ms = [None if one is None else round(one / 1e3, 2) for one in us]
        lines.append([name, *ms, planned["overlap"], planned["segments"]])
    return Table("What each configuration takes", columns, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the verdicts and the table, and write both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_table", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    contents = [json.loads(path.read_text()) for path in options.files]
    networks: dict[str, dict[str, Row]] = {}
    for row in (row for content in contents for row in content["rows"]):
        networks.setdefault(row["model"], {})[row["config"]] = row
    facts = {fact["model"]: fact for content in contents for fact in content["models"]}
    measures, found = verdicts(networks, facts), table(networks, facts)
    found.show()
    if options.json:
        write(options.json, measures, [found], **contents[0]["circumstances"])


if __name__ == "__main__":
    main()
