"""Plan measured phones and compare with the literature: its methods, and the plans that HOPE's authors published.

    python -m benchmarks.phones FOLDER --budget 5 --figures --json phones.json

One row per profile, CPU configuration and method; ``--figures`` adds HOPE's figures 4 to 7. Every schedule is proven
legal by the checker. A method's row is the method as its paper has it; ``auto`` is what the planner answers with, and
``mosaic+overlap`` is MOSAIC's placement as our engine would run it.

FOLDER holds one ``<phone>--<model>.json`` per network: ``ops`` (name, inputs, outputs, and ``latency_us`` by ``gpu``
and by CPU configuration, e.g. ``cpu_big_4``; null where it does not run), ``tensors`` (name to shape), ``transfer_us``
(rows of ``shape``, ``cpu_to_gpu``, ``gpu_to_cpu``). The authors' plans stand beside it in
``<phone>--<model>.plans.json``: ``placements``, from ``<method>/<cpu>`` to a letter per op, C or G.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from benchmarks import cli, figures
from benchmarks.mulayer import mulayer_us
from benchmarks.profiles import BadProfile, PhoneProfile, find, phone_problem
from benchmarks.results import Measure, Table, TableRow, judged, report
from benchmarks.rounds import ROUNDS, in_rounds
from planner_api.planning import Budget, PlanningError, Problem, UnknownMethod, check, optimise
from planner_api.planning.bound.trivial import trivial
from planner_api.planning.construct.listing import listed
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.methods import Bound, Solution, solve
from planner_api.planning.methods import method as find_method

METHODS = "auto,greedy,ilp,heft,dmdar,mosaic,mosaic+overlap,partitiontuner,partitiontuner+overlap,mulayer,single"
OVERLAP = "+overlap"
MULAYER = "mulayer"
"""A sum, not a plan."""
SPLITTABLE = frozenset({"Conv", "DepthwiseConv", "MatMul", "AveragePool", "MaxPool"})
"""What μLayer computes in two parts."""
REFERENCE = "hope_lp"
"""The authors' placements that every makespan is divided by."""
BUDGET_S = 5.0
"""Per plan: what the figures that must hold are for. With less they are shown, and not judged."""
LEGEND = (
    "Plans in ms (`*`: the ILP ran out of time, and HOPE:GS, which was better, stands there; without `*` it may be "
    "worse too, since it goes part by part; μLayer parts ops, so it may lie below the bound, which is of whole ops)"
)
REPEATS = 5
AT_ONCE_S = 0.2
"""Plans made faster than this are made ``REPEATS`` times."""


@dataclass(frozen=True)
class Row:
    """One plan. Times in microseconds but for ``seconds``: wall time, bound included.

    ``found_by`` is the method that really found it. μLayer has no schedule.
    """

    profile: str
    cpu: str
    method: str
    found_by: str
    makespan_us: float
    lower_bound_us: float
    bound_method: str
    seconds: float
    schedule: Schedule | None = None
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> float:
        """Makespan / bound - 1."""
        return self.makespan_us / self.lower_bound_us - 1 if self.lower_bound_us > 0 else 0.0

    def as_json(self) -> dict[str, object]:
        """Everything, the schedule as its intervals."""
        fields = ("profile", "cpu", "method", "found_by", "makespan_us", "lower_bound_us", "bound_method", "seconds")
        return {name: getattr(self, name) for name in fields} | {"notes": self.notes, "schedule": intervals(self)}


def replay(problem: Problem, letters: str) -> float:
    """Makespan in microseconds of one of the authors' placements, in list order by upward rank."""
    assignment = ["CG".index(letter) for letter in letters]
    schedule = listed(problem, assignment)
    check(problem, schedule)
    return schedule.makespan_us


def warm_up(problem: Problem, methods: Sequence[str], budget: float) -> None:
    """Import everything that the methods use, so that no row pays for it.

    As in the server, what now lives for good is then hidden from the garbage collector, whose pause would otherwise
    fall into some row.
    """
    for method in methods:
        if method != MULAYER:
            plan(problem, method, Budget(min(budget, 1.0)))
    gc.collect()
    gc.freeze()


def measure(problem: Problem, profile: PhoneProfile, cpu: str, method: str, options: argparse.Namespace) -> Row:
    """Plan and check the plan. What takes no time is planned a few times: the shortest is what was not interrupted."""
    seconds = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        solution, bound = plan(problem, method, Budget(options.budget, seed=options.seed))
        seconds = min(seconds, time.perf_counter() - began)
        if seconds > AT_ONCE_S:
            break
    schedule = solution.schedule
    check(problem, schedule)
    found = (solution.method, schedule.makespan_us, bound.us, bound.method, seconds, schedule, solution.notes)
    return Row(profile.stem, cpu, method, *found)


def plan(problem: Problem, method: str, budget: Budget) -> tuple[Solution, Bound]:
    """A plan with its bound: ours as the planner would answer, all others as the literature has them.

    The planner itself never answers with a plan that a single processor beats.
    """
    if method == "auto":
        outcome = optimise(problem, method, budget)
        return outcome.solution, outcome.bound
    solution = solve(problem, method.removesuffix(OVERLAP), budget)
    if method in ROUNDS:
        solution = replace(solution, schedule=in_rounds(problem, solution.schedule.assignment, ROUNDS[method](problem)))
    return replace(solution, method=method) if method.endswith(OVERLAP) else solution, trivial(problem)


def mulayer(profile: PhoneProfile, cpu: str, problem: Problem) -> Row:
    """μLayer on a phone: splitting an op costs the cheapest move that was measured, there and back."""
    began = time.perf_counter()
    sync_us = sum(min(float(row[way]) for row in profile.transfers) for way in ("cpu_to_gpu", "gpu_to_cpu"))
    total = mulayer_us(problem.latency_us, [type_ in SPLITTABLE for type_ in profile.types], sync_us)
    seconds = time.perf_counter() - began
    # Layers split over both processors: no bound on whole ops holds for them.
    return Row(profile.stem, cpu, MULAYER, MULAYER, total, 0.0, "none", seconds)


@dataclass
class Report:
    """Rows by profile and CPU, the authors' makespans beside them, and what follows from both."""

    rows: dict[tuple[str, str], dict[str, Row]] = field(default_factory=lambda: defaultdict(dict))
    authors: dict[tuple[str, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def ratios(self, method: str, reference: str) -> list[float]:
        """Makespan of one method over another's, or else over the authors' plan of that name, where both exist."""
        found = []
        for key, rows in self.rows.items():
            base = rows[reference].makespan_us if reference in rows else self.authors[key].get(reference)
            if method in rows and base:
                found.append(rows[method].makespan_us / base)
        return found

    def share_bound(self, key: tuple[str, str]) -> None:
        """Hold every plan of a profile to the best bound that any of its methods proved."""
        rows = self.rows[key]
        best = max((row for row in rows.values() if row.schedule), key=lambda row: row.lower_bound_us, default=None)
        for method, row in rows.items():
            if best is not None and row.schedule:
                rows[method] = replace(row, lower_bound_us=best.lower_bound_us, bound_method=best.bound_method)

    def print_profile(self, profile: str, cpu: str) -> None:
        """The lines of one profile and CPU."""
        authors = self.authors[profile, cpu]
        reference = authors.get(REFERENCE)
        for name, us in authors.items():
            against = f"{us / reference:8.3f}" if reference else f"{'-':>8}"
            print(f"{profile:30} {cpu:12} {'authors: ' + name:22} {us / 1e3:10.2f} {against}")
        for row in self.rows[profile, cpu].values():
            against = f"{row.makespan_us / reference:8.3f}" if reference else f"{'-':>8}"
            says = [row.found_by] * (row.found_by != row.method) + [row.bound_method, *row.notes]
            bound = f"{row.lower_bound_us / 1e3:10.2f} {row.gap:7.2%}" if row.lower_bound_us else f"{'-':>10} {'-':>7}"
            print(
                f"{profile:30} {cpu:12} {row.method:22} {row.makespan_us / 1e3:10.2f} {against} "
                f"{bound} {row.seconds:7.3f}  " + "; ".join(says),
                flush=True,
            )

    def plans(self) -> Table:
        """Every profile and CPU with every method's plan in milliseconds, and how good and how quick ``auto`` was."""
        methods = list(dict.fromkeys(method for rows in self.rows.values() for method in rows))
        lines: list[TableRow] = []
        for (profile, cpu), rows in self.rows.items():
            line: TableRow = [profile, cpu]
            reference = self.authors[profile, cpu].get(REFERENCE)
            line.append(reference and f"{reference / 1e3:.2f}")
            for method in methods:
                row = rows.get(method)
                beaten = row is not None and method == "ilp" and row.found_by != "ilp"
                line.append(None if row is None else f"{row.makespan_us / 1e3:.2f}{'*' * beaten}")
            if (auto := rows.get("auto")) is not None:
                line += [f"{auto.lower_bound_us / 1e3:.2f}", f"{auto.gap:.2%}", f"{auto.seconds:.3f}"]
            elif "auto" in methods:
                line += [None] * 3
            lines.append(line)
        of_auto = ["bound", "gap of auto", "seconds of auto"] if "auto" in methods else []
        return Table(LEGEND, ["profile", "CPU", "authors' HOPE:LP", *methods, *of_auto], lines)

    def summary(self, budget: float = BUDGET_S) -> list[Measure]:
        """Print the paper's headline with ours beside it, then one line per figure that must hold."""
        lines = []
        for name, mean, most in (("mosaic", "22.0 %", "36.2 %"), ("dmdar", "10.2 %", "22.0 %")):
            compared = [("rebuilt", self.ratios("ilp", name))]
            pairs = [
                plans[REFERENCE] / plans[name] for plans in self.authors.values() if {REFERENCE, name} <= set(plans)
            ]
            compared.append(("authors' own plans", pairs))
            for label, ratios in compared:
                if ratios:
                    gain, top = 1 - fmean(ratios), 1 - min(ratios)
                    lines.append(f"{name + ', ' + label:26} {gain:8.2%} {top:9.2%} {len(ratios):3}  ({mean}, {most})")
        if lines:
            print("\nHOPE:LP is faster by          mean      best   n  (the paper: mean, best)", *lines, sep="\n")
        print()
        found = []
        verdict = partial(judged, budget=budget, least=BUDGET_S)
        best = self.ratios("auto", REFERENCE)
        if best:
            found.append(verdict("ours / authors' HOPE:LP, mean", fmean(best), 0.925))
            found.append(verdict("ours / authors' HOPE:LP, worst", max(best), 0.99))
        heft = self.ratios("auto", "heft")
        if heft:
            found.append(verdict("ours / HEFT, mean", fmean(heft), 0.92))
        auto = [rows["auto"] for rows in self.rows.values() if "auto" in rows]
        if auto:
            found.append(verdict("gap to our bound, mean", fmean(row.gap for row in auto), 0.045))
        inception = [row for row in auto if "inception" in row.profile]
        if inception:
            found.append(verdict("gap of the Inceptions, worst", max(row.gap for row in inception), 0.01))
        greedy = [rows["greedy"] for rows in self.rows.values() if "greedy" in rows]
        if greedy:
            slowest = max(greedy, key=lambda row: row.seconds)
            assert slowest.schedule is not None
            found.append(verdict(f"greedy, seconds, {len(slowest.schedule.assignment)} ops", slowest.seconds, 0.05))
        return found


def run(profiles: Sequence[PhoneProfile], options: argparse.Namespace) -> Report:
    """Plan everything that was selected, printing as it goes."""
    jobs = [(profile, cpu) for profile in profiles for cpu in options.cpu or profile.cpus]
    problems = {(profile.stem, cpu): phone_problem(profile, cpu) for profile, cpu in jobs}
    warm_up(min(problems.values(), key=lambda problem: len(problem.ops)), options.methods, options.budget)
    report = Report()
    print(f"{'profile':30} {'cpu':12} {'method':22} {'ms':>10} {'/HOPE:LP':>8} {'bound ms':>10} {'gap':>7} {'s':>7}")
    for profile, cpu in jobs:
        problem = problems[profile.stem, cpu]
        for key, letters in profile.plans.items():
            name, _, configuration = key.partition("/")
            if configuration == cpu:
                report.authors[profile.stem, cpu][name] = replay(problem, letters)
        for method in options.methods:
            try:
                if method == MULAYER:
                    row = mulayer(profile, cpu, problem)
                else:
                    row = measure(problem, profile, cpu, method, options)
            except PlanningError as error:
                print(f"{profile.stem:30} {cpu:12} {method:22} no plan: {error}")
                continue
            report.rows[profile.stem, cpu][method] = row
        report.share_bound((profile.stem, cpu))
        report.print_profile(profile.stem, cpu)
    return report


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark. A method that finds no plan is a line of the report, no failure."""
    parser = cli.measuring("phones", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files; see above")
    parser.add_argument("--models", type=cli.names, default=[], help="models or file stems; default: all")
    parser.add_argument("--cpu", type=cli.names, default=[], help="CPU configurations; default: every cpu_big_N")
    parser.add_argument(
        "--methods", type=cli.names, default=cli.names(METHODS), help=f"MODULE:FUNCTION is yours; default: {METHODS}"
    )
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds per plan (auto and ilp); default: 5")
    parser.add_argument("--seed", type=int, default=0, help="of the search; default: 0")
    parser.add_argument("--figures", action="store_true", help="HOPE's figures 4 to 7, with all of their methods")
    parser.add_argument("--schedules", type=cli.file, help="write the schedule of every row here")
    options = parser.parse_args(arguments)
    try:
        for name in options.methods:
            if name != MULAYER:
                find_method(name.removesuffix(OVERLAP))
        if not options.methods:
            raise UnknownMethod(f"no method was named: choose from {METHODS}")
        profiles = find(options.folder, options.models)
        if options.figures:
            options.methods += [method for method in figures.COLUMNS if method not in options.methods]
        found = run(profiles, options)
        drawn = figures.draw(found.rows, profiles, partial(measure, options=options)) if options.figures else []
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))
    report(options.json, found.summary(options.budget), [found.plans(), *drawn])
    if options.schedules:
        rows = [row for rows in found.rows.values() for row in rows.values()]
        options.schedules.write_text(json.dumps([row.as_json() for row in rows]))


def intervals(row: Row) -> list[tuple[int, str, float, float]]:
    """Op, processor, start and finish in microseconds of every op of a row."""
    if row.schedule is None:
        return []
    columns = (row.schedule.assignment, row.schedule.start_us, row.schedule.finish_us)
    return [(op, ("cpu", "gpu")[p], start, finish) for op, (p, start, finish) in enumerate(zip(*columns, strict=True))]


if __name__ == "__main__":
    main()
