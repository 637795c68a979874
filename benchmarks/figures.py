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

from benchmarks.profiles import CPU, GPU, PAPERS_CPU, PhoneProfile, at_frequency, on_two_clusters, phone_problem
from benchmarks.results import Table, TableRow
from planner_api.planning import Problem
from planner_api.planning.construct.single import singles

COLUMNS = ("mosaic", "dmdar", "mulayer", "greedy", "ilp", "auto")
"""Methods of figure 4, after the CPU and the GPU alone."""
TITLES = {"cpu": "CPU", "mosaic": "MOSAIC", "dmdar": "DMDAR", "mulayer": "μLayer", "greedy": "GS", "ilp": "LP"}
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
FIGURE_6: Mapping[tuple[str, str], Mapping[str, tuple[float | None, float]]] = {
    ("ilp", "mulayer"): {"huawei_p40": (25.8, 40.6), "redmi": (8.0, 28.0)},
    ("greedy", "mulayer"): {"huawei_p40": (None, 32.9), "redmi": (None, 25.4)},
}
"""Mean and most percent, by phone."""
FIGURE_7 = {("ilp", "dmdar"): (15.7, 2.2, 2.6, 9.8, 8.3)}
"""Percent by network."""
MEAN_AND_MOST = ("", "methods", "mean", "most")


class Found(Protocol):
    """What a figure needs of a row of the benchmark."""

    @property
    def found_by(self) -> str: ...
    @property
    def makespan_us(self) -> float: ...


Rows = Mapping[str, Found]
Measure = Callable[[Problem, PhoneProfile, str, str], Found]
"""Plan a problem of a profile, under a label, by a method."""


def draw(rows: Mapping[tuple[str, str], Rows], profiles: Sequence[PhoneProfile], measure: Measure) -> list[Table]:
    """Every figure that the profiles allow, each as a table."""
    of = {profile.stem: profile for profile in profiles}
    papers = {stem: rows[stem, cpu] for stem, cpu in rows if PAPERS_CPU.get(of[stem].phone) == cpu}
    low_end = [of[stem] for stem in papers if of[stem].phone == LOW_END]
    return [
        _over_gpu(rows, of),
        _figure_4(papers, of),
        _figure_6(papers, of),
        _figure_5(low_end, papers, measure),
        _figure_7(low_end, measure),
    ]


def below(rows: Rows, one: str, other: str) -> float:
    """By how many percent one method's latency is below another's."""
    return 100 * (1 - rows[one].makespan_us / rows[other].makespan_us)


def _over_gpu(rows: Mapping[tuple[str, str], Rows], of: Mapping[str, PhoneProfile]) -> Table:
    lines: list[TableRow] = []
    for (stem, cpu), row in rows.items():
        alone = {p: plan for members, plan in singles(phone_problem(of[stem], cpu)) for p in members}
        gpu_us = alone[GPU].makespan_us
        over = [alone[CPU].makespan_us / gpu_us, *(row[name].makespan_us / gpu_us for name in COLUMNS)]
        lines.append([stem, cpu, round(gpu_us / 1e3, 1), *over])
    columns = ("profile", "cores", "GPU, ms", *(TITLES.get(name, "ours") for name in ("cpu", *COLUMNS)))
    return Table("Figure 4, latency over that of the GPU alone", columns, lines)


def _figure_4(papers: Mapping[str, Rows], of: Mapping[str, PhoneProfile]) -> Table:
    lines: list[TableRow] = []
    for one, other in [*FIGURE_4, *(("auto", other) for other in ("ilp", "mosaic", "dmdar"))]:
        line: TableRow = [_versus(one, other)]
        for network, paper in zip(NETWORKS, FIGURE_4.get((one, other), (None,) * len(NETWORKS)), strict=True):
            found = [below(row, one, other) for stem, row in papers.items() if of[stem].model == network]
            line.append(_beside(fmean(found) if found else None, paper))
        lines.append(line)
    title = "Figure 4 with the paper's cores, percent below, mean of the phones: found (paper)"
    return Table(title, ("", *NETWORKS), lines)


def _figure_5(profiles: Sequence[PhoneProfile], papers: Mapping[str, Rows], measure: Measure) -> Table:
    lines: list[TableRow] = []
    for label, megahertz in MEGAHERTZ.items():
        found: list[Rows] = []
        for profile in profiles:
            if label == "max":
                found.append(papers[profile.stem])
                continue
            problem = at_frequency(phone_problem(profile, PAPERS_CPU[LOW_END]), megahertz / MEGAHERTZ["max"])
            found.append({name: measure(problem, profile, label, name) for name in COLUMNS if name != "mulayer"})
        pairs = {pair: FIGURE_5[pair].get(label) for pair in FIGURE_5} | {("auto", "dmdar"): None}
        lines += _mean_and_most(label, found, pairs)
    return Table(f"Figure 5 on the {LOW_END} by frequency, percent below: found (paper)", MEAN_AND_MOST, lines)


def _figure_6(papers: Mapping[str, Rows], of: Mapping[str, PhoneProfile]) -> Table:
    lines: list[TableRow] = []
    for phone in PAPERS_CPU:
        found = [row for stem, row in papers.items() if of[stem].phone == phone]
        pairs = {pair: FIGURE_6[pair].get(phone) for pair in FIGURE_6} | {("auto", "mulayer"): None}
        lines += _mean_and_most(phone, found, pairs)
    return Table("Figure 6, HOPE and μLayer by phone, percent below: found (paper)", MEAN_AND_MOST, lines)


def _figure_7(profiles: Sequence[PhoneProfile], measure: Measure) -> Table:
    lines: list[TableRow] = []
    for profile in profiles:
        if not {BIG, LITTLE} <= set(profile.keys):
            lines.append([profile.model, "was not measured on both clusters", None])
            continue
        problem = on_two_clusters(profile, BIG, LITTLE)
        rows = {name: measure(problem, profile, "big+LITTLE", name) for name in ("dmdar", "greedy", "ilp", "auto")}
        for one, other in (("ilp", "dmdar"), ("greedy", "dmdar"), ("auto", "dmdar")):
            known = dict(zip(NETWORKS, FIGURE_7.get((one, other), ()), strict=False))
            percent = _beside(below(rows, one, other), known.get(profile.model))
            lines.append([profile.model, _versus(one, other), percent])
    title = f"Figure 7, two big and four LITTLE cores of the {LOW_END}, percent below: found (paper)"
    return Table(title, ("network", "methods", "found (paper)"), lines)


def _mean_and_most(
    label: str, rows: Sequence[Rows], pairs: Mapping[tuple[str, str], tuple[float | None, float] | None]
) -> list[TableRow]:
    lines: list[TableRow] = []
    for (one, other), paper in pairs.items():
        found = [below(row, one, other) for row in rows]
        mean, most = paper or (None, None)
        if found:
            lines.append([label, _versus(one, other), _beside(fmean(found), mean), _beside(max(found), most)])
    return lines


def _versus(one: str, other: str) -> str:
    return f"{TITLES.get(one, 'ours')} below {TITLES.get(other, 'ours')}"


def _beside(found: float | None, paper: float | None) -> str:
    return f"{'–' if found is None else f'{found:.1f}'} ({'–' if paper is None else f'{paper:.1f}'})"
