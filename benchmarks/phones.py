"""Plan measured phones and compare with the plans that HOPE's authors published for them.

    python -m benchmarks.phones FOLDER --budget 5 --json phones.json

One row per profile, CPU configuration and method. Every schedule is proven legal by the checker.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.profiles import BadProfile, PhoneProfile, find, phone_problem
from planner_api.planning import Budget, PlanningError, Problem, UnknownMethod, check, optimise, portfolio, simulate
from planner_api.planning.bound.trivial import trivial
from planner_api.planning.construct.listing import list_order
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.solver import SOLVERS, Bound, Solution, solve

METHODS = "auto,greedy,ilp,heft,dmdar,mosaic,single"
BASELINES = frozenset({"heft", "dmdar", "mosaic", "single", "partitiontuner"})
"""Methods that nobody can ask the planner for."""
REFERENCE = "hope_lp"
"""The authors' placements that every makespan is divided by."""
REPEATS = 5
AT_ONCE_S = 0.2
"""Plans made faster than this are made ``REPEATS`` times."""


@dataclass(frozen=True)
class Row:
    """One plan. Times in microseconds but for ``seconds``: wall time, bound included."""

    profile: str
    cpu: str
    method: str
    makespan_us: float
    lower_bound_us: float
    bound_method: str
    seconds: float
    schedule: Schedule
    notes: tuple[str, ...]

    @property
    def gap(self) -> float:
        """Makespan / bound - 1."""
        return self.makespan_us / self.lower_bound_us - 1 if self.lower_bound_us > 0 else 0.0

    def as_json(self) -> dict[str, object]:
        columns = (self.schedule.assignment, self.schedule.start_us, self.schedule.finish_us)
        intervals = enumerate(zip(*columns, strict=True))
        return {
            "profile": self.profile,
            "cpu": self.cpu,
            "method": self.method,
            "makespan_us": self.makespan_us,
            "lower_bound_us": self.lower_bound_us,
            "bound_method": self.bound_method,
            "seconds": self.seconds,
            "notes": list(self.notes),
            "schedule": [[op, ("cpu", "gpu")[p], start, finish] for op, (p, start, finish) in intervals],
        }


def replay(problem: Problem, letters: str) -> float:
    """Makespan in microseconds of one of the authors' placements, in list order by upward rank."""
    assignment = ["CG".index(letter) for letter in letters]
    schedule = simulate(problem, assignment, list_order(problem, assignment))
    check(problem, schedule)
    return schedule.makespan_us


def warm_up(problem: Problem, methods: Sequence[str], budget: float) -> None:
    """Import and compile everything that the methods use, so that no row pays for it.

    As in the server, what now lives for good is then hidden from the garbage collector, whose pause would otherwise
    fall into some row.
    """
    if "auto" in methods:
        portfolio.warm(problem.mode)
    for method in methods:
        optimise(problem, method, Budget(min(budget, 1.0)))
    gc.collect()
    gc.freeze()


def measure(problem: Problem, profile: str, cpu: str, method: str, budget: float, seed: int) -> Row:
    """Plan and check the plan. What takes no time is planned a few times: the shortest is what was not interrupted."""
    seconds = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        solution, bound = plan(problem, method, Budget(budget, seed=seed))
        seconds = min(seconds, time.perf_counter() - began)
        if seconds > AT_ONCE_S:
            break
    schedule = solution.schedule
    check(problem, schedule)
    return Row(profile, cpu, method, schedule.makespan_us, bound.us, bound.method, seconds, schedule, solution.notes)


def plan(problem: Problem, method: str, budget: Budget) -> tuple[Solution, Bound]:
    """A plan with its bound: as the planner would answer, but for baselines, which stand as the literature has them.

    The planner itself never answers with a plan that a single processor beats.
    """
    if method in BASELINES:
        return solve(problem, method, budget), trivial(problem)
    outcome = optimise(problem, method, budget)
    return outcome.solution, outcome.bound


class Report:
    """Rows by profile and CPU, the authors' makespans beside them, and what follows from both."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
        self.authors: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)

    def ratios(self, method: str, reference: str) -> list[float]:
        """Makespan of one method over another's, or else over the authors' plan of that name, where both exist."""
        found = []
        for key, rows in self.rows.items():
            base = rows[reference].makespan_us if reference in rows else self.authors[key].get(reference)
            if method in rows and base:
                found.append(rows[method].makespan_us / base)
        return found

    def print_profile(self, profile: str, cpu: str) -> None:
        """The lines of one profile and CPU."""
        authors = self.authors[profile, cpu]
        reference = authors.get(REFERENCE)
        for name, us in authors.items():
            against = f"{us / reference:8.3f}" if reference else f"{'-':>8}"
            print(f"{profile:30} {cpu:12} {'authors: ' + name:22} {us / 1e3:10.2f} {against}")
        for row in self.rows[profile, cpu].values():
            against = f"{row.makespan_us / reference:8.3f}" if reference else f"{'-':>8}"
            print(
                f"{profile:30} {cpu:12} {row.method:22} {row.makespan_us / 1e3:10.2f} {against} "
                f"{row.lower_bound_us / 1e3:10.2f} {row.gap:7.2%} {row.seconds:7.3f}  {row.bound_method}"
                + "".join(f"; {note}" for note in row.notes),
                flush=True,
            )

    def print_summary(self) -> None:
        """The paper's headline with ours beside it, then one line per figure that must hold."""
        print("\nHOPE:LP is faster by          mean      best   n  (the paper: mean, best)")
        for name, mean, best in (("mosaic", "22.0 %", "36.2 %"), ("dmdar", "10.2 %", "22.0 %")):
            lines = [("rebuilt", self.ratios("ilp", name))]
            pairs = [
                plans[REFERENCE] / plans[name] for plans in self.authors.values() if {REFERENCE, name} <= set(plans)
            ]
            lines.append(("authors' own plans", pairs))
            for label, ratios in lines:
                if ratios:
                    gain, top = 1 - fmean(ratios), 1 - min(ratios)
                    print(f"{name + ', ' + label:26} {gain:8.1%} {top:9.1%} {len(ratios):3}  ({mean}, {best})")
        print()
        best = self.ratios("auto", REFERENCE)
        if best:
            verdict("mean makespan / authors' HOPE:LP", fmean(best), 0.93)
            verdict("worst makespan / authors' HOPE:LP", max(best), 1.0)
        heft = self.ratios("auto", "heft")
        if heft:
            verdict("mean makespan / HEFT", fmean(heft), 0.92)
        auto = [rows["auto"] for rows in self.rows.values() if "auto" in rows]
        if auto:
            verdict("mean gap to our bound", fmean(row.gap for row in auto), 0.10)
        inception = [row for row in auto if "inception" in row.profile]
        if inception:
            verdict("worst gap of the Inceptions", max(row.gap for row in inception), 0.01)
        greedy = [rows["greedy"] for rows in self.rows.values() if "greedy" in rows]
        if greedy:
            slowest = max(greedy, key=lambda row: row.seconds)
            verdict(f"greedy, seconds, {len(slowest.schedule.assignment)} ops", slowest.seconds, 0.05)


def verdict(what: str, value: float, must: float) -> None:
    """Print one figure and whether it holds."""
    print(f"{what:48} {value:8.4f}  must be <= {must:g}: {'yes' if value <= must else 'NO'}")


def run(profiles: Sequence[PhoneProfile], arguments: argparse.Namespace) -> Report:
    """Plan everything that was selected, printing as it goes."""
    jobs = [(profile, cpu) for profile in profiles for cpu in arguments.cpu or profile.cpus]
    problems = {(profile.stem, cpu): phone_problem(profile, cpu) for profile, cpu in jobs}
    warm_up(min(problems.values(), key=lambda problem: len(problem.ops)), arguments.methods, arguments.budget)
    report = Report()
    print(f"{'profile':30} {'cpu':12} {'method':22} {'ms':>10} {'/HOPE:LP':>8} {'bound ms':>10} {'gap':>7} {'s':>7}")
    for profile, cpu in jobs:
        problem = problems[profile.stem, cpu]
        for key, letters in profile.plans.items():
            name, _, configuration = key.partition("/")
            if configuration == cpu:
                report.authors[profile.stem, cpu][name] = replay(problem, letters)
        for method in arguments.methods:
            try:
                row = measure(problem, profile.stem, cpu, method, arguments.budget, arguments.seed)
            except PlanningError as error:
                print(f"{profile.stem:30} {cpu:12} {method:22} no plan: {error}")
                continue
            report.rows[profile.stem, cpu][method] = row
        report.print_profile(profile.stem, cpu)
    report.print_summary()
    return report


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [name for name in text.split(",") if name]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.phones", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files")
    parser.add_argument("--models", type=names, default=[], help="models or file stems, comma-separated; default: all")
    parser.add_argument("--cpu", type=names, default=[], help="CPU configurations; default: every cpu_big_N of a file")
    parser.add_argument("--methods", type=names, default=names(METHODS), help=f"default: {METHODS}")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds per plan (auto and ilp); default: 5")
    parser.add_argument("--seed", type=int, default=0, help="of the search; default: 0")
    parser.add_argument("--json", type=Path, help="write every row here")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 2 for bad input. A method that finds no plan is a line of the report, no failure."""
    options = parse(arguments)
    try:
        for method in options.methods:
            if method not in SOLVERS:
                raise UnknownMethod(f"there is no method '{method}': choose from {', '.join(SOLVERS)}")
        if not options.methods:
            raise UnknownMethod(f"no method was named: choose from {', '.join(SOLVERS)}")
        if options.json and not options.json.parent.is_dir():
            raise BadProfile(f"{options.json}: there is no folder to write this into")
        report = run(find(options.folder, options.models), options)
    except (BadProfile, PlanningError) as error:
        print(f"benchmarks.phones: {error}", file=sys.stderr)
        return 2
    if options.json:
        rows = [row.as_json() for rows in report.rows.values() for row in rows.values()]
        authors = [
            {"profile": profile, "cpu": cpu, "plan": name, "makespan_us": us}
            for (profile, cpu), plans in report.authors.items()
            for name, us in plans.items()
        ]
        options.json.write_text(json.dumps({"rows": rows, "authors": authors}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
