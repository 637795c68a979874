"""What was measured, held against what was asked for: of many cores each network, of two cores the zoo."""

from __future__ import annotations

import math
import statistics
from typing import Any

from agent_sdk.journey.trial import PLAN
from benchmarks.results import Measure, Table, TableRow, verdict

Row = dict[str, Any]
Networks = dict[str, dict[str, Row]]
"""Rows of configurations by name, by network."""
SLOWER = 1.03
"""No network may take more than so many times what the best plain configuration takes."""
MEAN = 0.85
"""What the networks together may take, times the best configuration of ONNX Runtime."""
FEW_CORES = 2
"""Up to so many there is little to do at the same time, and networks are judged together."""


def judge(content: Row) -> tuple[list[Measure], list[Table]]:
    """The rows that must hold, what everything takes and what was planned, of all that one machine found."""
    networks: Networks = {}
    for row in content["rows"]:
        networks.setdefault(row["model"], {})[row["config"]] = row
    facts = {fact["model"]: fact for fact in content["models"]}
    few = content["machine"]["cores"] <= FEW_CORES
    measures = on_few_cores(networks) if few else on_many_cores(networks, facts)
    return measures, [taken(networks, facts), promised(networks, facts)]


def geometric_mean(networks: Networks) -> float:
    """Of what answers ÷ the best configuration of ONNX Runtime."""
    return math.exp(statistics.fmean(math.log(rows["ours"]["ratio_to_best_ort"]) for rows in networks.values()))


def on_few_cores(networks: Networks) -> list[Measure]:
    """The rows that must hold where two cores are all there is."""
    worst = max(networks, key=lambda name: networks[name]["ours"]["ratio_to_best_single"])
    ratio = networks[worst]["ours"]["ratio_to_best_single"]
    error = max(rows["ours"]["max_rel_error"] for rows in networks.values())
    return [
        verdict(f"ours / best ONNX Runtime, geometric mean of {len(networks)}", geometric_mean(networks), MEAN),
        verdict(f"ours / best single runtime, worst ({worst})", ratio, SLOWER),
        verdict("largest error of an answer", error, 1e-3),
    ]


def on_many_cores(networks: Networks, facts: dict[str, Row]) -> list[Measure]:
    """The rows that must hold of every network, and of all."""
    found = []
    for name, rows in networks.items():
        ours, planned = rows["ours"], rows["ours_planned"]
        best = min((config for config in rows if config.startswith("ort_")), key=lambda one: rows[one]["median_us"])
        answered = facts[name]["answered_by"]
        ratio = ours["ratio_to_best_ort"]
        found += [
            verdict(f"{name}: ours ({answered}) / best ONNX Runtime ({best})", ratio, SLOWER),
            verdict(f"{name}: largest error of the answer", ours["max_rel_error"], 1e-3),
        ]
        if answered == PLAN:  # what does not answer promises nothing
            timed, tried = planned["planner_error"], planned["prediction_error"]
            found += [
                verdict(f"{name}: the plan, as the planner timed it, against measured", timed, 0.08),
                verdict(f"{name}: the plan, as it was tried at load, against measured", tried, 0.08),
            ]
    parallel = [rows["ours"] for rows in networks.values() if (rows["ours"]["overlap"] or 0.0) >= 1 / 3]
    won = sum(row["ratio_to_best_ort"] <= 0.85 for row in parallel)
    mean = geometric_mean(networks)
    found.append(verdict(f"ours / best ONNX Runtime, geometric mean of {len(networks)}", mean, MEAN))
    found.append(verdict("networks <= 0.85 with two or more at work for a third of the run", won, 4, at_least=True))
    return found


def promised(networks: Networks, facts: dict[str, Row]) -> Table:
    """What each plan took beside what the planner said of it; in the end the mean, and the one that was off most."""
    ratios = {name: rows["ours_planned"]["median_us"] / facts[name]["planned_us"] for name, rows in networks.items()}
    lines: list[list[str | float | None]] = [
        [name, facts[name]["planned_us"] / 1e3, networks[name]["ours_planned"]["median_us"] / 1e3, ratio]
        for name, ratio in ratios.items()
    ]
    off = {name: math.log(ratio) for name, ratio in ratios.items()}
    worst = max(off, key=lambda name: abs(off[name]))
    lines.append([f"geometric mean of {len(off)}", None, None, math.exp(statistics.fmean(off.values()))])
    lines.append([f"worst ({worst})", None, None, ratios[worst]])
    return Table("What plans took, and what was planned", ["network", "planned ms", "measured ms", "ratio"], lines)


def taken(networks: Networks, facts: dict[str, Row]) -> Table:
    """What everything takes."""
    configurations = list(next(iter(networks.values())))
    plain = [config for config in configurations if not config.startswith("ours")]
    columns = ["milliseconds", *plain, "ours", "the plan", "planned", "lower bound", "overlap of the plan", "segments"]
    columns.append("answered by")
    lines: list[TableRow] = []
    for name, rows in networks.items():
        planned = rows["ours_planned"]
        us = [rows[config]["median_us"] if config in rows else None for config in [*plain, "ours", "ours_planned"]]
        us += [facts[name]["planned_us"], facts[name]["lower_bound_us"]]
        ms = [None if one is None else round(one / 1e3, 2) for one in us]
        lines.append([name, *ms, planned["overlap"], planned["segments"], facts[name]["answered_by"]])
    return Table("What each configuration takes", columns, lines)
