"""Several networks at once: how much can be done within the deadlines, and what is missed when there is more to do.

Examples:
  python -m benchmarks.mixes --minutes 40 --json mixes.json          everything, on this machine
  python -m benchmarks.mixes --only twins,chain --minutes 8          some mixes
  python -m benchmarks.mixes --mixes a.json,b.json                   mixes of one's own
  python -m benchmarks.mixes --phones ../shared/phones --minutes 0   simulated phones alone

For each mix every configuration's capacity is found: the largest load (sum of latency alone over period) with at most
1 % of the deadlines missed; then its misses at 1.25 times the capacity of the best plain configuration. Plain ones:
ONNX Runtime by default, without spinning, with cores over networks threads, with one thread, on its global pool, and
OpenVINO's throughput mode. They run what is late as their users' programs do; ours drops it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from agent_sdk.agent import Agent
from agent_sdk.cli.mixing import Voice, voices
from agent_sdk.errors import InputError
from agent_sdk.machine.timing import timed
from agent_sdk.scheduling.job import Job
from agent_sdk.scheduling.mixes import Mix, Stream, read_mix
from agent_sdk.scheduling.outcome import summed_up
from agent_sdk.scheduling.playing import Asks
from agent_sdk.scheduling.policies import policy
from benchmarks import cli
from benchmarks.mixes import phones, plain
from benchmarks.mixes.capacity import at_load, measured
from benchmarks.mixes.cases import MODELS, cases
from benchmarks.mixes.decisions import decision_us
from benchmarks.mixes.pooled import Pooled
from benchmarks.profiles import find
from benchmarks.results import Measure, Table, TableRow, report, say, verdict

POOL: Final = "ort, global pool"
OURS: Final = ("fifo", "least_slack", "earliest_deadline")
"""Policies that are measured; the last one is what agents do by default, and is judged."""
OVERLOAD: Final = 1.25
PHONE_LOAD: Final = 1.25
"""Load of the simulated phones, by the best processor of each network."""
LEAST_S: Final = 1.0


def ours(agent: Agent, ready: Mapping[str, Voice], which: str) -> Asks:
    """Begins runs as jobs of an agent, which is under a policy from now on."""
    agent.jobs.use(policy(which))

    def ask(stream: Stream, due_ms: float | None) -> Job:
        own = ready[stream.name]
        return agent.submit(own.session, own.feed, deadline_ms=due_ms, on_late=stream.on_late)

    return ask


def alone(models: set[str]) -> dict[str, float]:
    """What each network takes with the machine to itself, milliseconds: ONNX Runtime by default, the median of 15."""
    found = {}
    for model in sorted(models):
        run = partial(plain.onnxruntime(model), plain.drawn(model))
        run()
        found[model] = statistics.median(timed(run)[0] for _ in range(15)) / 1e3
    return found


def one_mix(
    mix: Mix, by_model: Mapping[str, float], folder: Path, end_s: float, probes: int
) -> tuple[list[Measure], Table]:
    """Every configuration's capacity and misses, side by side, by about ``end_s`` on the monotonic clock.

    ``folder`` keeps plans for later mixes.
    """
    cores = len(os.sched_getaffinity(0))
    alone_ms = {stream.name: by_model[stream.model] for stream in mix.streams}
    rows: list[TableRow] = []
    capacities: dict[str, float] = {}
    lost: dict[str, float] = {}
    measures = []
    with ExitStack() as closing:
        agent = closing.enter_context(Agent(processors="ort", cache=folder))
        ready = voices(agent, mix, closing)
        feeds = {stream.model: ready[stream.name].feed for stream in mix.streams}
        makers = plain.configurations(cores, len(mix.streams))

        pooled = closing.enter_context(Pooled(folder, feeds))
        every = (*makers, POOL, *OURS)
        seconds = max((end_s - time.monotonic()) / len(every) / (0.7 * probes + 2), LEAST_S)

        def found(name: str, load: float | None) -> float:
            if name == POOL:
                return pooled.measured(mix, load, alone_ms, seconds, probes)
            with ExitStack() as own:
                ask = ours(agent, ready, name) if name in OURS else plain.asking(mix, feeds, makers[name], own)
                return measured(mix, load, alone_ms, ask, seconds, probes)

        for name in every:
            capacities[name] = found(name, None)
            say({"mix": mix.name, "configuration": name, "capacity": round(capacities[name], 3)})
        best = max(capacities[name] for name in (*makers, POOL))
        for name in every:
            lost[name] = found(name, OVERLOAD * best) if best else 1.0
            rows.append([name, capacities[name], lost[name]])
        judged = OURS[-1]
        if best:
            share = capacities[judged] / best
            measures.append(verdict(f"{mix.name}: capacity ÷ best plain", share, 0.97, at_least=True))
            least = min(lost[name] for name in (*makers, POOL))
            measures.append(verdict(f"{mix.name}: misses at 1.25 ÷ least plain", lost[judged] / max(least, 1e-9), 0.6))
        if mix.name == "small beside large" and capacities[judged]:
            ended = at_load(mix, 0.8 * capacities[judged], alone_ms, ours(agent, ready, judged), 2 * seconds)
            p99 = summed_up(mix.streams[0].name, ended, seconds).p99_ms or float("inf")
            small = p99 / ready[mix.streams[0].name].alone_ms
            measures.append(verdict(f"{mix.name}: p99 of the small one ÷ alone at 80 %", small, 3.0))
        if mix.name == "best effort":
            measures.append(best_effort(mix, alone_ms, ours(agent, ready, judged), ready, seconds))
    return measures, Table(mix.name, ["configuration", "capacity", "missed at 1.25"], rows)


def best_effort(
    mix: Mix, alone_ms: Mapping[str, float], ask: Asks, ready: Mapping[str, Voice], seconds: float
) -> Measure:
    """The loop's throughput beside a periodic network of half load, of what is left of the cores."""
    ended = at_load(mix, 0.5, alone_ms, ask, 2 * seconds)
    loop = next(stream for stream in mix.streams if stream.arrival == "closed")
    per_second = summed_up(loop.name, ended, 2 * seconds).per_second
    left = 1.0 - sum(
        ready[stream.name].alone_ms / (stream.period_ms or 1.0)
        for stream in mix.at_load(0.5, alone_ms).streams
        if stream.period_ms is not None
    )
    share = per_second * ready[loop.name].alone_ms / 1e3 / max(left, 1e-9)
    return verdict(f"{mix.name}: the loop's throughput ÷ what is left of the cores", share, 0.85, at_least=True)


def geometric(values: list[float]) -> float:
    """Their geometric mean."""
    return statistics.geometric_mean(values) if values and min(values) > 0 else 0.0


def simulated(folder: Path) -> tuple[list[Measure], list[Table]]:
    """Phones of which profiles are here, in simulated time."""
    table, found = phones.replay(find(folder))
    measures = []
    for phone, by_load in found.items():
        own = by_load[PHONE_LOAD]
        if len({profile.model for profile in find(folder) if profile.phone == phone}) >= 5:
            share = own["least_slack"] / own["fifo"]
            measures.append(verdict(f"{phone}, five networks: misses, least slack ÷ in order of arrival", share, 0.4))
    return measures, [table]


def main() -> None:
    parser = cli.measuring("mixes", __doc__)
    parser.add_argument("--mixes", type=cli.names, metavar="FILES", help="mix files to play instead")
    parser.add_argument("--only", type=cli.names, metavar="NAMES", help="of the mixes that stand here, these")
    parser.add_argument("--minutes", type=float, default=40.0, help="about how long all of it may take; 0: no mixes")
    parser.add_argument("--probes", type=int, default=8, help="loads tried for each capacity")
    parser.add_argument("--phones", type=Path, metavar="FOLDER", help="profiles of phones to replay in simulated time")
    options = parser.parse_args()
    measures: list[Measure] = []
    tables: list[Table] = []
    for units, must in ((5, 50.0), (20, 200.0)):
        measures.append(verdict(f"a decision of 10 jobs on 6 processors, {units} units: µs", decision_us(units), must))
    if options.phones is not None:
        found, shown = simulated(options.phones)
        measures += found
        tables += shown
    if options.minutes > 0:
        found, shown = real(options.mixes, options.only, options.minutes, options.probes)
        measures += found
        tables += shown
    report(options.json, measures, tables)


def real(
    files: list[str] | None, only: list[str] | None, minutes: float, probes: int
) -> tuple[list[Measure], list[Table]]:
    """The mixes on this machine."""
    own = [read_mix(name) for name in files or ()]
    by_model = alone({stream.model for mix in own for stream in mix.streams} if files else set(MODELS))
    say({"alone_ms": {name: round(ms, 2) for name, ms in by_model.items()}})
    mixes = own or [mix for mix in cases(by_model) if not only or mix.name in only]
    if not mixes:
        raise InputError(f"no mix is called {', '.join(only or [])}")
    began, measures, tables = time.monotonic(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for index, mix in enumerate(mixes):
            now = time.monotonic()
            end_s = now + (began + minutes * 60 - now) / (len(mixes) - index)
            found, table = one_mix(mix, by_model, Path(folder), end_s, probes)
            measures += found
            tables.append(table)
    shares = [one.value for one in measures if one.measure.endswith("capacity ÷ best plain")]
    losses = [one.value for one in measures if "misses at 1.25" in one.measure]
    measures.append(verdict("capacity ÷ best plain, geometric mean", geometric(shares), 1.10, at_least=True))
    if losses:
        measures.append(verdict("misses at 1.25 ÷ least plain, mean", statistics.fmean(losses), 0.6))
    return measures, tables


if __name__ == "__main__":
    main()
