"""How well latencies are predicted that nobody measured, and what plans made of them lose.

    python -m benchmarks.prediction DIR --device --json prediction.json

One network is left out of what a phone's predictors know, or one whole phone; then k of the network's signatures are
measured, the most telling ones, and the rest is predicted. *Plan loss* is the makespan of the plan made from
predictions, replayed on the true figures, over that of the plan made from true figures, minus one. Figures within a
microsecond, the clocks' resolution, count as within 10 %.

Any phone's profiles will do; of its CPU configurations the paper's is taken, else the first of the most cores. Types
and windows are read from the names of ops, as far as shapes agree with them, the layouts that ops work in from
those before them; moves are taken as measured.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from benchmarks import at_once, cli
from benchmarks.profiles import BadProfile, PhoneProfile, find, op_type, phone_problem
from benchmarks.results import Measure, Table, TableRow, joined, report, verdict
from planner_api.planning import Budget, PlanningError, Problem, optimise, simulate
from planner_api.prediction.asking import most_telling
from planner_api.prediction.features import LANES, POOLS, Features
from planner_api.prediction.predictor import Prediction, Predictor, Sample, TooLittleError

MEASURED = (0, 5, 20, 50)
BAND, TICK_US = 0.10, 1.0
FOLDS = 10
"""Into so many parts a phone's signatures are divided, each of which is predicted from all others."""
KINDS = ("cpu", "gpu")
WINDOWS = POOLS | {"Conv", "DepthwiseConv"}
ON_HOST = frozenset({"strided_slice", "Mean", "Reshape", "SpatialSqueeze"})
"""Types beside which turning a layout takes a GPU several times as long: it goes by way of the host."""

Figures = dict[Features, list[float]]
"""Every latency measured of an op on one kind of processor."""


def phone_features(profile: PhoneProfile, op: dict[str, Any]) -> Features:
    """What name and shapes tell of an op of a phone's network."""
    shapes = [[max(1, size) for size in profile.shapes[name]] for name in op["inputs"]]
    out = [max(1, size) for size in profile.shapes[op["outputs"][0]]]
    (_, channels, height, width), (_, filters, rows, columns) = _four(shapes[0] if shapes else out), _four(out)
    type_, stride, kernel, weights = op_type(op["name"]), max(1, round(height / rows)), (1, 1), 0
    if type_ in WINDOWS:
        named = re.findall(r"(\d+)x(\d+)", op["name"])
        pointwise = op["name"].endswith("separable_conv2d") or not named
        kernel = (1, 1) if pointwise else (int(named[-1][0]), int(named[-1][1]))
        if type_ in POOLS and not named:
            # A cell's own pool is that of a factorised reduction, which takes every other pixel (NASNet, PNASNet).
            reduces = op["name"].rpartition("/")[0].rpartition("/")[2].startswith("cell")
            kernel = (height, width) if rows == columns == 1 else (1, 1) if reduces else (3, 3)
        fits = all(_reaches(*axis, stride) for axis in ((height, kernel[0], rows), (width, kernel[1], columns)))
        if type_ == "Conv" and not fits:
            kernel = (height - (rows - 1) * stride,) * 2  # names of a few strided windows say 1x1
    if type_ == "Conv":
        weights = channels * filters * math.prod(kernel)
    elif type_ == "DepthwiseConv":
        weights = filters * math.prod(kernel)
    elif type_ == "MatMul":
        # The matrix stands among the inputs, and its rows and columns elsewhere than in an image.
        weights, filters = math.prod(shapes[1]), math.prod(out)
        channels = math.prod(shapes[0])
    return Features(
        type=type_,
        channels=channels,
        filters=filters,
        pixels=math.prod(out) // filters,
        kernel=kernel,
        stride=stride,
        groups=channels if type_ == "DepthwiseConv" else 1,
        read=sum(math.prod(shape) for shape in shapes),
        written=math.prod(out),
        weights=weights,
        inputs=len(shapes),
        packed=all(_four(shape)[1] % LANES == 0 for shape in shapes) and filters % LANES == 0,
    )


def phone_ops(profile: PhoneProfile) -> list[Features]:
    """Features of all ops of a phone's network, with the layout that each works in.

    What slides a window reads and writes channels in blocks, a layout op turns what it reads into the other layout, and
    all else works in blocks where everything that it reads stands in blocks.
    """
    readers: dict[str, set[str]] = defaultdict(set)
    for row in profile.ops:
        for name in row["inputs"]:
            readers[name].add(op_type(row["name"]))
    in_blocks: dict[str, bool] = {}
    makers: dict[str, str] = {}
    found = []
    for row in profile.ops:
        op = phone_features(profile, row)
        read = [in_blocks[name] for name in row["inputs"] if name in in_blocks]
        blocked = bool(read) and all(read)
        if op.type in WINDOWS:
            blocked = True
        elif op.type == "Layout":
            blocked = not all(read)
            ends = readers[row["outputs"][0]] | {makers.get(name, "") for name in row["inputs"]}
            op = replace(op, type=("Pack" if blocked else "Unpack") + ("Host" if ends & ON_HOST else ""))
        elif read and not blocked:
            op = replace(op, packed=False)
        for name in row["outputs"]:
            in_blocks[name], makers[name] = blocked, op_type(row["name"])
        found.append(op)
    return found


def _four(shape: list[int]) -> tuple[int, int, int, int]:
    batch, channels, rows, columns = ([*shape, 1, 1, 1, 1])[:4]
    return batch, channels, rows, columns


def _reaches(size: int, window: int, made: int, stride: int) -> bool:
    """Whether a window makes so many outputs, padded or not."""
    return made in ((size - window) // stride + 1, -(-size // stride) if window > 1 or stride == 1 else 0)


@dataclass
class Network:
    """A phone's network: the features of its ops, and what was measured of each on the CPU and on the GPU."""

    profile: PhoneProfile
    ops: list[Features]
    figures: tuple[Figures, Figures]

    @classmethod
    def of(cls, profile: PhoneProfile) -> Network:
        ops = phone_ops(profile)
        figures: tuple[Figures, Figures] = (defaultdict(list), defaultdict(list))
        for found, key in zip(figures, (profile.usual, "gpu"), strict=True):
            for op, row in zip(ops, profile.ops, strict=True):
                if row["latency_us"].get(key) is not None:
                    found[op].append(float(row["latency_us"][key]))
        return cls(profile, ops, figures)

    @property
    def counts(self) -> Counter[Features]:
        """How often each op runs."""
        return Counter(self.ops)

    def problem(self) -> Problem:
        """As it was measured."""
        return phone_problem(self.profile, self.profile.usual)

    def within(self, kind: int, us: Mapping[Features, float]) -> float:
        """Share of the ops whose figure lies within the band."""
        errors = [(abs(us[op] - true), true) for op, all_ in self.figures[kind].items() for true in all_]
        return fmean(error <= max(BAND * true, TICK_US) for error, true in errors)


def samples(networks: Sequence[Network], kind: int, only: Sequence[Features] | None = None) -> list[Sample]:
    """What networks have measured on a kind of processor, one sample per signature."""
    merged: Figures = defaultdict(list)
    for network in networks:
        for op, us in network.figures[kind].items():
            merged[op] += us
    wanted = merged if only is None else only
    return [Sample(op, median(merged[op]), len(merged[op])) for op in wanted if merged.get(op)]


def network_out(network: Network, others: Sequence[Network], measured: Sequence[Features]) -> list[Predictor]:
    """Predictors of a phone that knows its other networks, and some signatures of this one."""
    known = [other for other in others if other.profile.phone == network.profile.phone and other is not network]
    found = []
    for kind in range(len(KINDS)):
        rows = {sample.op: sample for sample in samples(known, kind)}
        rows |= {sample.op: sample for sample in samples([*known, network], kind, measured)}
        found.append(Predictor(list(rows.values())))
    return found


def phone_out(network: Network, others: Sequence[Network], measured: Sequence[Features]) -> list[Predictor]:
    """Predictors of a phone of which only these signatures are known, beside another phone's."""
    known = [other for other in others if other.profile.phone != network.profile.phone]
    kinds = range(len(KINDS))
    return [Predictor(samples([network], kind, measured), Predictor(samples(known, kind))) for kind in kinds]


def plan_loss(
    network: Network, found: Sequence[Mapping[Features, Prediction]], true_us: float, budget: Budget
) -> float:
    """What planning on predictions loses."""
    true = network.problem()
    told = np.array([[one[op].us for one in found] for op in network.ops])
    guess = replace(
        true,
        latency_us=np.where(np.isinf(true.latency_us), np.inf, told),
        predicted_spread=np.array([[one[op].spread for one in found] for op in network.ops]),
    )
    schedule = optimise(guess, "auto", budget).solution.schedule
    return simulate(true, schedule.assignment, schedule.sequence).makespan_us / true_us - 1


def run(networks: Sequence[Network], budget: Budget) -> tuple[list[Measure], list[dict[str, object]]]:
    """Every network, both ways, with every number of measured signatures."""
    rows: list[dict[str, object]] = []
    print(
        f"{'left out':10} {'network':28} {'k':>3} {'cpu 10%':>8} {'gpu 10%':>8} {'(own medians)':>14} {'plan loss':>10}"
    )
    for network in networks:
        stem = network.profile.stem
        best = optimise(network.problem(), "auto", budget).solution.schedule.makespan_us
        ceiling = [network.within(kind, {s.op: s.us for s in samples([network], kind)}) for kind in range(len(KINDS))]
        for left_out, predictors_of in (("network", network_out), ("phone", phone_out)):
            try:
                first = predictors_of(network, networks, [])
            except TooLittleError as error:
                print(f"{left_out:10} {stem:28} {error}")
                continue
            for k in MEASURED:
                measured = most_telling(first, network.counts, k)
                predictors = predictors_of(network, networks, measured)
                found = []
                for kind, predictor in enumerate(predictors):
                    ops = list(network.counts)
                    known = {one.op: Prediction(one.us, 0.0) for one in samples([network], kind, measured)}
                    found.append(dict(zip(ops, predictor(ops), strict=True)) | known)
                within = [
                    network.within(kind, {op: one.us for op, one in found[kind].items()}) for kind in range(len(KINDS))
                ]
                loss = plan_loss(network, found, best, budget)
                rows.append(
                    {"left_out": left_out, "network": stem, "measured": k, "plan_loss": loss}
                    | dict(zip(("within_cpu", "within_gpu"), within, strict=True))
                    | dict(zip(("own_medians_cpu", "own_medians_gpu"), ceiling, strict=True))
                )
                print(
                    f"{left_out:10} {stem:28} {k:3} {within[0]:8.2f} {within[1]:8.2f} "
                    f"{ceiling[0]:8.2f} {ceiling[1]:5.2f} {loss:10.1%}",
                    flush=True,
                )
    return judge(rows), rows


def judge(rows: Sequence[dict[str, Any]]) -> list[Measure]:
    """One line per figure that must hold."""
    print()
    found = []
    of = {
        key: [row for row in rows if (row["left_out"], row["measured"]) == key]
        for key in (("network", 0), ("network", 20), ("phone", 20))
    }
    unseen = [row[name] for row in of["network", 0] for name in ("within_cpu", "within_gpu")]
    if unseen:
        found.append(verdict("leave one network out: ops within 10 %", fmean(unseen), 0.80, at_least=True))
    for key, what, mean, worst in (
        (("network", 0), "unseen network, nothing measured", 0.08, 0.20),
        (("network", 20), "unseen network, 20 signatures measured", 0.05, 0.12),
        (("phone", 20), "unseen phone, 20 signatures measured", 0.04, 0.12),
    ):
        losses = [row["plan_loss"] for row in of[key]]
        if losses:
            found.append(verdict(f"{what}: plan loss, mean", fmean(losses), mean))
            found.append(verdict(f"{what}: plan loss, worst", max(losses), worst))
    return found


def beside_all_others(networks: Sequence[Network], kind: int) -> dict[Features, float]:
    """What is predicted of every signature where nearly all others are known, those of its own network too."""
    rows = samples(networks, kind)
    found: dict[Features, float] = {}
    for fold in range(FOLDS):
        left_out = [row.op for row in rows[fold::FOLDS]]
        known = Predictor([row for index, row in enumerate(rows) if index % FOLDS != fold])
        found |= {op: one.us for op, one in zip(left_out, known(left_out), strict=True)}
    return found


def floor(networks: Sequence[Network]) -> Table:
    """What bounds predictions: how often figures of a signature agree, in a file and in two, and what others tell."""
    lines: list[TableRow] = []
    for phone in dict.fromkeys(network.profile.phone for network in networks):
        mine = [network for network in networks if network.profile.phone == phone]
        for kind, name in enumerate(KINDS):
            own = [network.within(kind, {s.op: s.us for s in samples([network], kind)}) for network in mine]
            between, known = [], 0
            for network in mine:
                there = samples([other for other in mine if other is not network], kind)
                elsewhere = {sample.op: sample.us for sample in there}
                shared = Network(network.profile, [], _only(network.figures, elsewhere))
                if shared.figures[kind]:
                    between.append(shared.within(kind, elsewhere))
                known += sum(map(len, shared.figures[kind].values()))
            ops = sum(len(network.ops) for network in mine)
            told = None
            with suppress(TooLittleError):
                beside = beside_all_others(mine, kind)
                told = fmean(network.within(kind, beside) for network in mine)
            lines.append([phone, name, fmean(own), known / ops, fmean(between) if between else None, told])
    columns = ["phone", "kind", "its own file's median", "ops that another file has too", "that file's median"]
    columns.append("what is predicted with all other signatures known")
    return Table("What bounds a predictor: share of figures within 10 % of", columns, lines)


def _only(figures: tuple[Figures, Figures], ops: Mapping[Features, float]) -> tuple[Figures, Figures]:
    cpu, gpu = ({op: us for op, us in one.items() if op in ops} for one in figures)
    return cpu, gpu


def by_count(rows: Sequence[dict[str, Any]]) -> Table:
    """What each number of measured signatures buys, over all networks."""
    lines: list[TableRow] = []
    for left_out in ("network", "phone"):
        for k in MEASURED:
            here = [row for row in rows if (row["left_out"], row["measured"]) == (left_out, k)]
            if here:
                means = [fmean(row[name] for row in here) for name in ("within_cpu", "within_gpu", "plan_loss")]
                lines.append([left_out, k, *means, max(row["plan_loss"] for row in here)])
    columns = ["left out", "measured", "within 10 %, CPU", "within 10 %, GPU", "plan loss, mean", "plan loss, worst"]
    return Table("Predictions by what was measured: a network, or a phone, left out", columns, lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = cli.measuring("prediction", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files")
    parser.add_argument("--models", type=cli.names, default=[], help="models or file stems")
    parser.add_argument("--rounds", type=int, default=60, help="of the search per plan; default: 60")
    parser.add_argument("--seed", type=int, default=0, help="of the search; default: 0")
    parser.add_argument("--device", action="store_true", help="measure a new network on two cores of this machine too")
    options = parser.parse_args(arguments)
    try:
        profiles = find(options.folder, options.models)
        networks = [Network.of(profile) for profile in profiles]
        measures, rows = run(networks, Budget(rounds=options.rounds, seed=options.seed))
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))
    found = [(measures, [by_count(rows), floor(networks)])]
    if options.device:
        found.append(at_once.device_time())
    report(options.json, *joined(found), cases=rows)


if __name__ == "__main__":
    main()
