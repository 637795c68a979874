"""HOPE's figures 4 to 7 over the measured phones, beside what the paper says of them.

Of the paper's three phones two were published, of its seven networks five. Figures 5 and 7 need a rule each:

- figure 5, frequency: the CPU's ops take longer in proportion, the GPU's and the moves as long as they do; medium is
  the middle between the lowest and the highest frequency, 652 and 2016 MHz.
- figure 7, big + LITTLE: two big and four LITTLE cores with nothing to move, on the redmi, whose clusters are equal;
  the paper's phone for it was published without its LITTLE cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from benchmarks.profiles import CPU, GPU, PhoneProfile, at_frequency, on_two_clusters, phone_problem
from planner_api.planning import Problem
from planner_api.planning.construct.single import singles

COLUMNS = ("mosaic", "dmdar", "mulayer", "greedy", "ilp", "auto")
"""Methods of figure 4, after the CPU and the GPU alone."""
TITLES = {"cpu": "CPU", "mosaic": "MOSAIC", "dmdar": "DMDAR", "mulayer": "μLayer", "greedy": "GS", "ilp": "LP"}
PAPERS_CPU = {"redmi": "cpu_big_4", "huawei_p40": "cpu_big_2"}
"""The cores that the paper used on each phone."""
LOW_END = "redmi"
MEGAHERTZ = {"min": 652.0, "medium": (652.0 + 2016.0) / 2, "max": 2016.0}
BIG, LITTLE = "cpu_big_2", "cpu_little_4"

FIGURE_4 = {
    ("ilp", "mosaic"): (23.4, 24.1, 2.9, 29.4, 31.1),
    ("ilp", "dmdar"): (13.7, 9.1, 2.9, 17.9, 18.0),
    ("greedy", "dmdar"): (8.2, 3.2, 0.5, 12.9, 11.7),
}
"""By how many percent one method is below another, mean of the phones, by network."""
NETWORKS = ("inception-v3", "inception-v4", "pnasnet-mobile", "pnasnet-large", "nasnet-large")
FIGURE_5 = {
    ("ilp", "mosaic"): {"min": (19.2, 26.4), "medium": (17.5, 25.2), "max": (22.1, 29.1)},
    ("ilp", "dmdar"): {"min": (10.8, 17.2), "medium": (9.3, 20.4), "max": (10.3, 17.0)},
}
"""Mean and most percent, by frequency."""
FIGURE_6 = {
    ("ilp", "mulayer"): {"huawei_p40": (25.8, 40.6), "redmi": (8.0, 28.0)},
    ("greedy", "mulayer"): {"huawei_p40": (None, 32.9), "redmi": (None, 25.4)},
}
"""Mean and most percent, by phone."""
FIGURE_7 = {("ilp", "dmdar"): (15.7, 2.2, 2.6, 9.8, 8.3)}
"""Percent by network."""


class Found(Protocol):
    """What a figure needs of a row of the benchmark."""

    @property
    def found_by(self) -> str: ...
    @property
    def makespan_us(self) -> float: ...


Rows = Mapping[str, Found]
Measure = Callable[[Problem, PhoneProfile, str, str], Found]
"""Plan a problem of a profile, under a label, by a method."""
Record = dict[str, object]


def draw(rows: Mapping[tuple[str, str], Rows], profiles: Sequence[PhoneProfile], measure: Measure) -> list[Record]:
    """Print every figure that the profiles allow and return them as records of numbers."""
    of = {profile.stem: profile for profile in profiles}
    records: list[Record] = []
    print(f"\nFigure 4, latency over that of the GPU alone\n{'profile':28} {'cpu':10}  GPU ms", end="")
    print("".join(f"{TITLES.get(name, 'ours'):>8}" for name in ("cpu", *COLUMNS)))
    for (stem, cpu), row in rows.items():
        alone = singles(phone_problem(of[stem], cpu))
        gpu_us = alone[GPU].makespan_us
        ratios = {"cpu": alone[CPU].makespan_us / gpu_us}
        ratios |= {name: row[name].makespan_us / gpu_us for name in COLUMNS if name in row}
        records.append({"figure": "4", "profile": stem, "cpu": cpu, "gpu_us": gpu_us, "over_gpu": ratios})
        print(f"{stem:28} {cpu:10} {gpu_us / 1e3:7.1f}" + "".join(f"{value:8.3f}" for value in ratios.values()))
    papers = {stem: rows[stem, cpu] for stem, cpu in rows if PAPERS_CPU.get(of[stem].phone) == cpu}
    records += _figure_4(papers, of)
    records += _figure_6(papers, of)
    low_end = [of[stem] for stem in papers if of[stem].phone == LOW_END]
    records += _figure_5(low_end, papers, measure)
    records += _figure_7(low_end, measure)
    return records


def below(rows: Rows, one: str, other: str) -> float:
    """By how many percent one method's latency is below another's."""
    return 100 * (1 - rows[one].makespan_us / rows[other].makespan_us)


def _figure_4(papers: Mapping[str, Rows], of: Mapping[str, PhoneProfile]) -> list[Record]:
    print("\nFigure 4 with the paper's cores, percent below, mean of the phones: found (paper)")
    print(f"{'':24}" + "".join(f"{name:>20}" for name in NETWORKS))
    records = []
    pairs = [*FIGURE_4, *(("auto", other) for other in ("ilp", "mosaic", "dmdar"))]
    for one, other in pairs:
        print(f"{_versus(one, other):24}", end="")
        for network, paper in zip(NETWORKS, FIGURE_4.get((one, other), (None,) * len(NETWORKS)), strict=True):
            found = [below(row, one, other) for stem, row in papers.items() if of[stem].model == network]
            if found:
                records.append(_record("4", one, other, network, fmean(found), paper))
            print(f"{_beside(fmean(found) if found else None, paper):>20}", end="")
        print()
    return records


def _figure_5(profiles: Sequence[PhoneProfile], papers: Mapping[str, Rows], measure: Measure) -> list[Record]:
    if not profiles:
        return []
    print(f"\nFigure 5 on the {LOW_END} by frequency, percent below: found (paper), mean and most")
    records = []
    for label, megahertz in MEGAHERTZ.items():
        found: list[Rows] = []
        for profile in profiles:
            if label == "max":
                found.append(papers[profile.stem])
                continue
            problem = at_frequency(phone_problem(profile, PAPERS_CPU[LOW_END]), megahertz / MEGAHERTZ["max"])
            found.append({name: measure(problem, profile, label, name) for name in COLUMNS if name != "mulayer"})
        records += _mean_and_most("5", label, found, {pair: FIGURE_5[pair].get(label) for pair in FIGURE_5})
        records += _mean_and_most("5", label, found, {("auto", "dmdar"): None})
    return records


def _figure_6(papers: Mapping[str, Rows], of: Mapping[str, PhoneProfile]) -> list[Record]:
    print("\nFigure 6, HOPE and μLayer by phone, percent below: found (paper), mean and most")
    records = []
    for phone in PAPERS_CPU:
        found = [row for stem, row in papers.items() if of[stem].phone == phone]
        if found:
            records += _mean_and_most("6", phone, found, {pair: FIGURE_6[pair].get(phone) for pair in FIGURE_6})
            records += _mean_and_most("6", phone, found, {("auto", "mulayer"): None})
    return records


def _figure_7(profiles: Sequence[PhoneProfile], measure: Measure) -> list[Record]:
    print(f"\nFigure 7, two big and four LITTLE cores of the {LOW_END}, percent below: found (paper)")
    records = []
    for profile in profiles:
        if not {BIG, LITTLE} <= set(profile.keys):
            print(f"{profile.model:24} was not measured on both clusters")
            continue
        problem = on_two_clusters(profile, BIG, LITTLE)
        rows = {name: measure(problem, profile, "big+LITTLE", name) for name in ("dmdar", "greedy", "ilp", "auto")}
        for one, other in (("ilp", "dmdar"), ("greedy", "dmdar"), ("auto", "dmdar")):
            known = dict(zip(NETWORKS, FIGURE_7.get((one, other), ()), strict=False))
            paper = known.get(profile.model)
            records.append(_record("7", one, other, profile.model, below(rows, one, other), paper))
            print(f"{profile.model:24} {_versus(one, other):24} {_beside(below(rows, one, other), paper):>16}")
    return records


def _mean_and_most(
    figure: str, label: str, rows: Sequence[Rows], pairs: Mapping[tuple[str, str], tuple[float | None, float] | None]
) -> list[Record]:
    records = []
    for (one, other), paper in pairs.items():
        found = [below(row, one, other) for row in rows]
        mean, most = paper or (None, None)
        records.append(_record(figure, one, other, f"{label}, mean", fmean(found), mean))
        records.append(_record(figure, one, other, f"{label}, most", max(found), most))
        print(f"{label:24} {_versus(one, other):24} {_beside(fmean(found), mean):>16} {_beside(max(found), most):>16}")
    return records


def _record(figure: str, one: str, other: str, of: str, percent: float, paper: float | None) -> Record:
    return {"figure": figure, "one": one, "other": other, "of": of, "below_percent": percent, "paper_percent": paper}


def _versus(one: str, other: str) -> str:
    return f"{TITLES.get(one, 'ours')} below {TITLES.get(other, 'ours')}"


def _beside(found: float | None, paper: float | None) -> str:
    return f"{'–' if found is None else f'{found:.1f}'} ({'–' if paper is None else f'{paper:.1f}'})"
