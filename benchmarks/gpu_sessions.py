"""Sessions on one GPU: several networks by one plan, runs at once, by deadlines; and what closed ones leave behind.

    python -m benchmarks.gpu --models "" --joint

A joint plan's graph is launched, on the device's clock, beside each session's own one behind the other; and both as an
application has them, from arrays on the host to arrays there. By deadlines each network is asked for once a
period, which is so long that one after the other needs ``LOAD`` of it; a run is late that ends after its period.
"""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from typing import Any, Final

import numpy as np
import torch

import hope_zoo as zoo
from agent_sdk.agent import Agent
from agent_sdk.engine import Executor
from agent_sdk.journey.services import THOROUGH_S
from agent_sdk.model.feeds import draw
from agent_sdk.model.united import UnitedModel
from agent_sdk.runtimes.torch.executable import TorchExecutable
from agent_sdk.scheduling.mixes import Mix, Stream
from agent_sdk.scheduling.outcome import Summary, summed_up
from agent_sdk.scheduling.playing import play
from agent_sdk.session import Session
from benchmarks.baselines import folded
from benchmarks.gpu_recordings import Configuration, behind, interleave, recorded
from benchmarks.results import Measure, say, verdict

SETS: Final[Mapping[tuple[str, ...], float]] = {
    ("inception_v3", "nasnet_mobile"): 0.72,
    ("inception_v3", "resnet50"): 0.66,
    ("inception_v3", "nasnet_mobile", "resnet50"): 0.62,
}
"""Networks that run together, and what their plan may take of one after the other."""
ROUNDS: Final = 60
LOAD: Final = 0.8
SECONDS: Final = 6.0
WAIT_S: Final = 5.0
"""How long an improved plan is waited for: what the planner spends by default."""
SLOWER: Final = 2.0
"""How much longer the smallest network may take by deadlines than alone, of a hundred runs the last but one."""

Feeds = Mapping[str, np.ndarray]


def flown_us(session: Session, feeds: Mapping[str, Any], at_once: int, runs: int = 2 * ROUNDS) -> float:
    """Microseconds a run of a session that so many threads call all the time."""

    def calls(_: None) -> None:
        for _run in range(runs):
            session.run(feeds)

    with ThreadPoolExecutor(at_once) as threads:
        list(threads.map(calls, repeat(None, at_once)))  # warm
        began = time.perf_counter_ns()
        list(threads.map(calls, repeat(None, at_once)))
        return (time.perf_counter_ns() - began) / 1e3 / (at_once * runs)


def rows(precision: str) -> list[dict[str, Any]]:
    """Each set of networks jointly and apart, and the largest by deadlines."""
    names = list(dict.fromkeys(name for names in SETS for name in names))
    found: list[dict[str, Any]] = []
    with (
        Agent(processors="cuda:0", precision=precision, measuring_s=THOROUGH_S, wait_s=WAIT_S) as agent,
        ExitStack() as opened,
    ):
        sessions = {name: opened.enter_context(agent.load(folded(zoo.path(name)), background=False)) for name in names}
        feeds = {name: draw(session.prepare().model, 0) for name, session in sessions.items()}
        for together in SETS:
            own = [(sessions[name], feeds[name]) for name in together]
            joint = opened.enter_context(agent.together(*(session for session, _ in own), wait_s=WAIT_S))
            us = _interleaved({"joint": partial(joint.run, *(feed for _, feed in own)), "apart": partial(_each, own)})
            whole = joint.whole
            model = whole.program.model
            assert isinstance(model, UnitedModel)
            graphs = {
                "joint": _recorded(whole, model.feed(feed for _, feed in own)),
                "apart": behind([_recorded(session.latest.plan_executor, feed) for session, feed in own]),
            }
            interleave(graphs, torch.cuda.Stream())
            device = {label: statistics.median(one.samples) * one.runs for label, one in graphs.items()}
            row = {
                "model": "+".join(together),
                "precision": precision,
                "config": "joint",
                "median_us": round(device["joint"], 1),
                "apart_us": round(device["apart"], 1),
                "ratio_to_apart": round(device["joint"] / device["apart"], 4),
                "streams": graphs["joint"].facts["streams"],
                "wall_us": round(us["joint"], 1),
                "apart_wall_us": round(us["apart"], 1),
                "wall_ratio_to_apart": round(us["joint"] / us["apart"], 4),
                "predicted_us": round(joint.plan.makespan_us, 1),
                "notes": joint.notes,
            }
            say(row)
            found.append(row)
        found.append(_by_deadlines(agent, sessions, feeds, us["apart"], precision))
    return found


def _recorded(executor: Executor, feed: Feeds) -> Configuration:
    """A network's one segment, recorded once more."""
    (executable,) = executor.executables
    assert isinstance(executable, TorchExecutable)
    with executable.processor.precision.switched():
        return recorded(executable, feed)


def _each(own: Sequence[tuple[Session, Feeds]]) -> None:
    for session, feed in own:
        session.run(feed)


def _interleaved(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """The median of what each takes in turn, microseconds."""
    took: dict[str, list[float]] = {label: [] for label in calls}
    for turn in range(10 + ROUNDS):
        for label, call in calls.items():
            began = time.perf_counter_ns()
            call()
            if turn >= 10:
                took[label].append((time.perf_counter_ns() - began) / 1e3)
    return {label: statistics.median(us) for label, us in took.items()}


def _by_deadlines(
    agent: Agent, sessions: Mapping[str, Session], feeds: Mapping[str, Feeds], apart_us: float, precision: str
) -> dict[str, Any]:
    """Every network once a period, and each by itself."""
    period_ms = apart_us / 1e3 / LOAD

    def played(names: Sequence[str]) -> dict[str, Summary]:
        streams = tuple(Stream(name=name, model=name, period_ms=period_ms) for name in names)
        ended = play(
            Mix(name="gpu", seconds=SECONDS, streams=streams),
            lambda stream, due_ms: agent.submit(sessions[stream.name], feeds[stream.name], deadline_ms=due_ms),
        )
        return {name: summed_up(name, ended, SECONDS) for name in names}

    alone = {name: played([name])[name] for name in sessions}
    smallest = min(alone, key=lambda name: alone[name].p50_ms or 0.0)
    beside = played(list(sessions))
    row = {
        "model": "+".join(sessions),
        "precision": precision,
        "config": "deadlines",
        "period_ms": round(period_ms, 4),
        "runs": sum(one.runs for one in beside.values()),
        "missed": sum(one.missed for one in beside.values()),
        "smallest": smallest,
        "p99_ms": beside[smallest].p99_ms,
        "alone_p99_ms": alone[smallest].p99_ms,
    }
    say(row)
    return row


def opened_and_closed(name: str, precision: str, count: int) -> list[dict[str, Any]]:
    """Sessions opened, run and closed one after the other: what the device's memory and the threads are afterwards."""
    held, threads = list[int](), list[int]()
    with Agent(processors="cuda:0", precision=precision, wait_s=WAIT_S) as agent:
        for _ in range(count):
            with agent.load(name, background=False) as session:
                session.run(draw(session.latest.model, 0))
            gc.collect()
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            held.append(total - free)
            threads.append(threading.active_count())
    early = min(9, count - 1)
    row = {
        "model": name,
        "precision": precision,
        "config": "sessions",
        "sessions": count,
        "device_bytes_early": held[early],
        "device_bytes_late": held[-1],
        "threads_early": threads[early],
        "threads_late": threads[-1],
    }
    say(row)
    return [row]


def verdicts(found: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """What must hold of these rows."""
    measures = []
    for row in found:
        if row["config"] == "joint":
            most = SETS[tuple(row["model"].split("+"))]
            what = f"{row['model']} {row['precision']}, one GPU: joint plan / one after the other"
            measures.append(verdict(what, row["ratio_to_apart"], most))
            measures.append(verdict(f"{what}, from arrays to arrays", row["wall_ratio_to_apart"], most))
        if row["config"] == "deadlines":
            what = f"{row['model']} by deadlines"
            measures.append(verdict(f"{what}: missed", row["missed"], 0.0))
            slower = row["p99_ms"] / row["alone_p99_ms"]
            measures.append(verdict(f"{what}: p99 of {row['smallest']} / alone", slower, SLOWER))
    return measures
