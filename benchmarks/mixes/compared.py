"""One mix on this machine: every configuration's capacity, and what each misses beyond it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Final

from agent_sdk.agent import Agent
from agent_sdk.cli.mixing import Voice, voices
from agent_sdk.scheduling.job import Job
from agent_sdk.scheduling.mixes import Mix, Stream
from agent_sdk.scheduling.outcome import Ended, missed, summed_up
from agent_sdk.scheduling.playing import Asks
from agent_sdk.scheduling.policies import DEFAULT, policy
from benchmarks.mixes import plain
from benchmarks.mixes.capacity import KEPT, PLAYS, TRIES, measured, plays
from benchmarks.mixes.pooled import Pooled
from benchmarks.results import Found, Measure, Table, TableRow, left_out, say, verdict, words

POOL: Final = "ort, global pool"
OURS: Final = ("fifo", DEFAULT)
PROCESSORS: Final = "ort,ov" if find_spec("openvino") is not None else "ort"
"""What the plain configurations compute with."""
OVERLOAD: Final = 1.25
LEAST_S: Final = 1.0
BESIDE_S: Final = 0.7
"""What a probe takes beyond its own time."""
PLAYED: Final = 1.1
"""Seconds that each second of a probe comes to: loads that fail end early, and are tried again."""
CAPACITY: Final = "capacity ÷ the best plain configuration's"
MISSES: Final = "misses at 1.25 × the best plain capacity ÷ the least of the plain ones"


def ours(agent: Agent, ready: Mapping[str, Voice], which: str) -> Asks:
    """Begins runs as jobs of an agent, which is under a policy from now on."""
    agent.jobs.use(policy(which))

    def ask(stream: Stream, due_ms: float | None) -> Job:
        own = ready[stream.name]
        return agent.submit(own.session, own.feed, deadline_ms=due_ms, on_late=stream.on_late)

    return ask


def one_mix(mix: Mix, by_model: Mapping[str, float], folder: Path, end_s: float, probes: int) -> Found:
    """Every configuration's capacity and misses, side by side, by about ``end_s`` on the monotonic clock.

    ``folder`` keeps plans for later mixes. A configuration that fails has done nothing.
    """
    cores = len(os.sched_getaffinity(0))
    alone_ms = {stream.name: by_model[stream.model] for stream in mix.streams}
    with ExitStack() as closing:
        agent = closing.enter_context(Agent(processors=PROCESSORS, cache=folder))
        ready = voices(agent, mix, closing)
        feeds = {stream.model: ready[stream.name].feed for stream in mix.streams}
        makers = plain.configurations(cores, len(mix.streams))
        pooled = closing.enter_context(Pooled(folder, feeds))
        every = (*makers, POOL, *OURS)
        left_s = (end_s - time.monotonic()) / len(every) - BESIDE_S * (TRIES * probes + PLAYS)
        seconds = max(left_s / (PLAYED * probes + 2.2), LEAST_S)
        say({"mix": mix.name, "configurations": len(every), "seconds_of_a_probe": round(seconds, 2)})

        def found(name: str, load: float | None) -> float | None:
            with left_out(mix=mix.name, configuration=name), ExitStack() as own:
                if name == POOL:
                    return pooled.measured(mix, load, alone_ms, seconds, probes)
                ask = ours(agent, ready, name) if name in OURS else plain.asking(mix, feeds, makers[name], own)
                return measured(mix, load, alone_ms, ask, seconds, probes)
            return None

        capacities = {}
        for name in every:
            capacities[name] = found(name, None)
            say({"mix": mix.name, "configuration": name, "capacity": words(capacities[name])})
        best = max(capacities[name] or 0.0 for name in (*makers, POOL))
        lost = {}
        for name in every:
            lost[name] = found(name, OVERLOAD * best) if best else None
            say({"mix": mix.name, "configuration": name, "missed_at_1.25": words(lost[name])})
        rows: list[TableRow] = [[name, capacities[name], lost[name]] for name in every]
        measures = _judged(mix.name, capacities, lost, [*makers, POOL])
        own = capacities[DEFAULT]
        with left_out(mix=mix.name, configuration=DEFAULT):
            if mix.name == "small beside large" and own:
                measures.append(_small(mix, 0.8 * own, alone_ms, ours(agent, ready, DEFAULT), ready, seconds))
            if mix.name == "best effort":
                measures += _best_effort(mix, alone_ms, ours(agent, ready, DEFAULT), ready, seconds)
    return measures, [Table(mix.name, ["configuration", "capacity", "missed at 1.25"], rows)]


def _judged(
    mix: str, capacities: Mapping[str, float | None], lost: Mapping[str, float | None], plain_ones: list[str]
) -> list[Measure]:
    best = max(capacities[name] or 0.0 for name in plain_ones)
    least = min((share for name in plain_ones if (share := lost[name]) is not None), default=None)
    own, missing = capacities[DEFAULT], lost[DEFAULT]
    found = []
    if best and own is not None:
        found.append(verdict(f"{CAPACITY}, {mix}", own / best, 0.97, at_least=True))
    if least is not None and missing is not None:
        found.append(verdict(f"{MISSES}, {mix}", missing / max(least, KEPT), 0.6))
    return found


def _small(
    mix: Mix, load: float, alone_ms: Mapping[str, float], ask: Asks, ready: Mapping[str, Voice], seconds: float
) -> Measure:
    small = mix.streams[0].name
    found = (summed_up(small, one, seconds).p99_ms for one in plays(mix, load, alone_ms, ask, 2 * seconds))
    p99 = median(ms or float("inf") for ms in found)
    what = "p99 of a small network beside a large one ÷ alone, at 80 % of capacity"
    return verdict(what, p99 / ready[small].alone_ms, 3.0)


def _best_effort(
    mix: Mix, alone_ms: Mapping[str, float], ask: Asks, ready: Mapping[str, Voice], seconds: float
) -> list[Measure]:
    """The loop's throughput beside a periodic network of half load, of what is left of the cores."""
    played = plays(mix, 0.5, alone_ms, ask, 2 * seconds)
    loop = next(stream for stream in mix.streams if stream.arrival == "closed")

    def per_second(ended: Sequence[Ended]) -> float:
        released = [one.release_ms for one in ended]
        lasted = (max(released, default=0.0) - min(released, default=0.0)) / 1e3
        return summed_up(loop.name, ended, lasted or seconds).per_second

    left = 1.0 - sum(
        ready[stream.name].alone_ms / (stream.period_ms or 1.0)
        for stream in mix.at_load(0.5, alone_ms).streams
        if stream.period_ms is not None
    )
    share = median(map(per_second, played)) * ready[loop.name].alone_ms / 1e3 / max(left, 1e-9)
    what = "closed loop of a best-effort network beside a periodic one"
    return [
        verdict(f"{what}: throughput ÷ what is left of the cores", share, 0.85, at_least=True),
        verdict(f"{what}: deadlines missed", median(map(missed, played)), KEPT),
    ]
