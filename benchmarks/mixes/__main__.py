"""Several networks at once: how much can be done within the deadlines, and what is missed when there is more to do.

Examples:
  python -m benchmarks.mixes --minutes 22 --json mixes.json          everything, on this machine
  python -m benchmarks.mixes --only twins,chain --minutes 8          some mixes
  python -m benchmarks.mixes --mixes a.json,b.json                   mixes of one's own
  python -m benchmarks.mixes --phones ../shared/phones --minutes 0   simulated phones alone

For each mix every configuration's capacity is found: the largest load (sum of latency alone over period) with at most
1 % of the deadlines missed; then its misses at 1.25 times the capacity of the best plain configuration. Plain ones:
ONNX Runtime by default, without spinning, with cores over networks threads, with one thread, on its global pool, and
OpenVINO's throughput mode. They run what is late as their users' programs do; ours drops it. What was found is written
after each mix, so that a run that is ended leaves what it has.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from agent_sdk.errors import InputError
from agent_sdk.machine.timing import timed
from agent_sdk.scheduling.mixes import Mix, read_mix
from benchmarks import cli
from benchmarks.mixes import phones, plain
from benchmarks.mixes.cases import MODELS, cases
from benchmarks.mixes.compared import CAPACITY, MISSES, one_mix
from benchmarks.mixes.decisions import decision_us
from benchmarks.mixes.sessions import alone_pays, joint
from benchmarks.profiles import find
from benchmarks.results import Found, Measure, Table, left_out, report, say, verdict, write

PHONE_LOAD: Final = 1.25
"""Load of the simulated phones, by the best processor of each network."""


def alone(models: set[str]) -> dict[str, float]:
    """What each network takes with the machine to itself, milliseconds: ONNX Runtime by default, the median of 15."""
    found = {}
    for model in sorted(models):
        run = partial(plain.onnxruntime(model), plain.drawn(model))
        run()
        found[model] = statistics.median(timed(run)[0] for _ in range(15)) / 1e3
    return found


def simulated(folder: Path) -> Found:
    """Phones of which profiles are here, in simulated time."""
    profiles = find(folder)
    table, found = phones.replay(profiles)
    measures = []
    for phone, by_load in found.items():
        own = by_load[PHONE_LOAD]
        if len({profile.model for profile in profiles if profile.phone == phone}) >= 5:
            share = own["least_slack"] / own["fifo"]
            what = f"simulated {phone}, five networks: least slack ÷ each on its best processor in order, misses"
            measures.append(verdict(what, share, 0.4))
    return measures, [table]


def decisions() -> Found:
    """What a decision costs."""
    limits = {5: 50.0, 20: 200.0}
    what = "a decision, 10 jobs, 6 processors, {} units: µs"
    return [verdict(what.format(units), decision_us(units), must) for units, must in limits.items()], []


def real(files: list[str] | None, only: list[str] | None, end_s: float, probes: int) -> Iterator[Found]:
    """The mixes on this machine, by about ``end_s`` on the monotonic clock."""
    own = [read_mix(name) for name in files or ()]
    by_model = alone({stream.model for mix in own for stream in mix.streams} if files else set(MODELS))
    say({"alone_ms": {name: round(ms, 2) for name, ms in by_model.items()}})
    mixes = own or [mix for mix in cases(by_model) if not only or mix.name in only]
    if not mixes:
        raise InputError(f"no mix is called {', '.join(only or [])}")
    with tempfile.TemporaryDirectory() as folder:
        if not own and not only:
            yield alone_pays(Path(folder))
            yield joint(Path(folder))
        for index, mix in enumerate(mixes):
            now = time.monotonic()
            say(
                {
                    "mix": mix.name,
                    "number": f"{index + 1} of {len(mixes)}",
                    "minutes_left": round((end_s - now) / 60, 1),
                }
            )
            yield measured_mix(mix, by_model, Path(folder), now + (end_s - now) / (len(mixes) - index), probes)


def measured_mix(mix: Mix, by_model: dict[str, float], folder: Path, end_s: float, probes: int) -> Found:
    """One mix; nothing where it fails."""
    with left_out(mix=mix.name):
        return one_mix(mix, by_model, folder, end_s, probes)
    return [], []


def over_all(measures: list[Measure]) -> list[Measure]:
    """What holds of all mixes together."""
    shares = [one.value for one in measures if one.measure.startswith(CAPACITY)]
    losses = [one.value for one in measures if one.measure.startswith(MISSES)]
    found = []
    if shares:
        mean = statistics.geometric_mean(shares) if min(shares) > 0 else 0.0
        found.append(Measure(f"{CAPACITY}, geometric mean", mean, 1.10, mean >= 1.10))
    if losses:
        mean = statistics.fmean(losses)
        found.append(Measure(f"{MISSES}, mean over mixes", mean, 0.6, mean <= 0.6))
    return found


def main() -> None:
    parser = cli.measuring("mixes", __doc__)
    parser.add_argument("--mixes", type=cli.names, metavar="FILES", help="mix files to play instead")
    parser.add_argument("--only", type=cli.names, metavar="NAMES", help="of the mixes that stand here, these")
    parser.add_argument("--minutes", type=float, default=22.0, help="about how long all of it may take; 0: no mixes")
    parser.add_argument("--probes", type=int, default=8, help="loads tried for each capacity")
    parser.add_argument("--phones", type=Path, metavar="FOLDER", help="profiles of phones to replay in simulated time")
    options = parser.parse_args()
    end_s = time.monotonic() + options.minutes * 60
    measures: list[Measure] = []
    tables: list[Table] = []

    def parts() -> Iterator[Found]:
        yield decisions()
        if options.phones is not None:
            yield simulated(options.phones)
        if options.minutes > 0:
            yield from real(options.mixes, options.only, end_s, options.probes)

    for found, shown in parts():
        measures += found
        tables += shown
        write(options.json, [*measures, *over_all(measures)], tables)
    report(options.json, [*measures, *over_all(measures)], tables)


if __name__ == "__main__":
    main()
