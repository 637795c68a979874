"""Malicious devices among those that measure, and small files that ask for long work: neither takes a server."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np

from agent_sdk.errors import ModelError
from agent_sdk.model import read_model
from benchmarks.service.fixtures import ladder, upload
from benchmarks.service.measures import Row
from hope_schema import ModelGraph, Profile
from planner_api.planning import Budget, build_problem, optimise, simulate
from planner_api.profiles.folding import Folder, estimates, wanted
from planner_api.profiles.snapshot import publish
from planner_api.profiles.statistics import Statistics, device_hash, ranks
from tests.agent.models import products

SIDE = 9000
"""Of the matrices whose products a small file asks for."""
LIARS = {"junk": 3.0, "first": 3.0, "repeated": 3.0, "coordinated": 3.0, "chosen": 0.5}
"""Manners of liars, and what plans may lose by each, in per cent."""


def liars(fleet: int = 200, share: float = 0.05) -> list[Row]:
    """Part of a SoC's devices are malicious, in each of four ways: what plans then lose on true figures."""
    graph = ladder(60, "liars")
    true = upload([graph], "soc", device="truth", seed=7).model_dump(mode="json")
    return [_liars(graph, true, manner, fleet, share) for manner in LIARS]


def _liars(graph: ModelGraph, true: dict[str, Any], manner: str, fleet: int, share: float) -> Row:
    """Fold a fleet that measures what it is asked for, with liars among it.

    *junk*: each upload of a liar is drawn anew; *first*: liars upload before anybody else does; *repeated*: they do so
    again after each honest device; *coordinated*: the same, and all of them say the same; *chosen*: of ten thousand ids
    they take those of lowest rank under a key that they guess.
    """
    draw, folder = random.Random(manner), Folder(Statistics())
    keys = list(zip(true["latencies"]["signature"], true["latencies"]["kind"], strict=True))
    row_of = {key: at for at, key in enumerate(keys)}
    numbers = _chosen(10_000) if manner == "chosen" else list(range(fleet))
    names = [f"liar-{n}" for n in numbers[: round(fleet * share)]] + [
        f"honest-{n}" for n in range(round(fleet * (1 - share)))
    ]
    if manner == "junk":
        draw.shuffle(names)
    own = {name: _lies(draw, len(keys)) for name in names}
    alike = _lies(draw, len(keys))
    ones, lying, asked = [1.0] * len(keys), [name for name in names if name.startswith("liar")], 0
    for number, name in enumerate(names):
        if name in lying:
            lies = _lies(draw, len(keys)) if manner == "junk" else alike if manner == "coordinated" else own[name]
            folder.fold([(name, _said(true, lies))])
            continue
        mine = wanted(folder.statistics.latencies, device_hash(name), keys, 200)
        mine += [key for key in keys if key not in folder.statistics.latencies.index]
        asked += len(mine)
        if mine:
            noisy = [draw.gauss(1.0, 0.01) for _ in keys]
            folder.fold([(name, _said(true, noisy, [row_of[key] for key in mine]))])
        if manner in ("repeated", "coordinated"):
            again = lying[number % len(lying)]
            folder.fold([(again, _said(true, alike if manner == "coordinated" else own[again]))])
    honest = Folder(Statistics())
    honest.fold([("truth", _said(true, ones))])
    chosen = [processor["id"] for processor in true["processors"]]
    profiles = (publish(each, estimates(each), "soc", "max", 1) for each in (honest.statistics, folder.statistics))
    truth, told = (build_problem(graph, Profile.model_validate_json(each), chosen) for each in profiles)
    best, misled = (optimise(problem, "auto", Budget(rounds=20)).solution.schedule for problem in (truth, told))
    lost = (simulate(truth, misled.assignment, misled.sequence).makespan_us / best.makespan_us - 1) * 100
    off = np.abs(told.latency_us / truth.latency_us - 1)
    return {
        "measure": f"{share:.0%} of {fleet} devices malicious, {manner}: plan loss on true figures, %",
        "database": "none",
        "value": round(lost, 2),
        "must": f"<= {LIARS[manner]:g}",
        "ok": lost <= LIARS[manner],
        "details": {"asked_per_device": round(asked / fleet, 1), "worst_figure": round(float(off.max()), 3)},
    }


def _chosen(candidates: int) -> list[int]:
    """Numbers of liars, those first whose ranks are lowest on many figures under a guessed key."""
    ids = np.array([device_hash(f"liar-{n}") for n in range(candidates)], dtype=np.uint64)
    figures = np.random.default_rng(0).integers(0, 2**63, 40).astype(np.uint64)[:, None]
    order = np.argsort(ranks((0, 0), figures, ids[None, :]).astype(np.float64).mean(axis=0))
    return [int(each) for each in order]


def _lies(draw: random.Random, count: int) -> list[float]:
    """What true figures are multiplied with."""
    return [draw.choice((0.02, 50.0)) for _ in range(count)]


def _said(true: dict[str, Any], factors: list[float], rows: list[int] | None = None) -> dict[str, Any]:
    """An upload of these rows of the true figures, each times its factor."""
    columns = true["latencies"]
    at = range(len(factors)) if rows is None else rows
    chosen = {name: [column[n] for n in at] for name, column in columns.items() if column}
    return {**true, "latencies": {**chosen, "us": [columns["us"][n] * factors[n] for n in at]}}


def small_file() -> Row:
    """A file of a few bytes asks for products of large constants: how long reading it takes."""
    file = products(SIDE)
    began = time.process_time()
    try:
        read_model(file)
        refused = False
    except ModelError:
        refused = True
    took_s = time.process_time() - began
    return {
        "measure": f"a file of {file.ByteSize()} bytes that asks for products of {SIDE}x{SIDE}: CPU to its refusal, s",
        "database": "none",
        "value": round(took_s, 2),
        "must": "<= 5",
        "ok": refused and took_s <= 5,
        "details": {"refused": refused},
    }
