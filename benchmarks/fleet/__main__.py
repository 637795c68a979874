"""What a fleet lives through, in figures.

Examples:
  python -m benchmarks.fleet                       everything, on a PostgreSQL that pip installed
  python -m benchmarks.fleet --only rule           the releases' rule alone, without a database
  python -m benchmarks.fleet --json fleet.json     the rows as JSON too
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import uvloop

from benchmarks import results
from benchmarks.fleet import reports, rule, week
from benchmarks.results import Measure, Table, verdict
from benchmarks.service.stage import Stage, databases

FLEET, SOCS, MODELS = 1_000_000, 500, 50
"""The fleet that figures are extrapolated to."""
SESSIONS, REPORTS = 4, 24
"""Of one device on one day: plans revalidated, and reports sent."""

Found = tuple[list[Measure], list[Table]]


def releases(options: argparse.Namespace) -> Found:
    """Releases with harm in a tenth of the SoCs, and releases without any, each to a fleet of its own."""
    size = {"devices": options.devices, "socs": options.socs}
    bad = [rule.simulate(**size, hit=0.1, slower=0.1, seed=seed) for seed in range(options.harmful)]
    shares = np.array([each.share for each in bad])
    fine = [
        rule.simulate(options.devices // 10, options.socs // 10, hit=0.0, slower=0.0, seed=seed)
        for seed in range(options.harmless)
    ]
    mistaken = sum(each.taken_back for each in fine)
    name = f"of {len(bad)} releases, 10 % slower on a tenth of the SoCs"
    measures = [
        verdict(f"{name}: share of the fleet that got it, mean", float(shares.mean()), 0.05),
        verdict(f"{name}: share of the fleet that got it, worst", float(shares.max()), 0.05),
        verdict(f"{name}: not taken back", float(np.mean([not each.taken_back for each in bad])), 0.0),
        verdict(f"of {len(fine)} releases with nothing wrong: stopped by mistake", mistaken / max(1, len(fine)), 0.01),
    ]
    days = [float(np.median([each.days for each in some])) for some in (bad, fine)]
    rows = [
        ["harmful", len(bad), options.devices, options.socs, float(np.median(shares)), days[0]],
        ["harmless", len(fine), options.devices // 10, options.socs // 10, 1.0, days[1]],
    ]
    return measures, [Table("Releases", ("kind", "releases", "devices", "SoCs", "median share", "median days"), rows)]


async def told(stage: Stage, options: argparse.Namespace) -> Found:
    """Reports of a minute beside normal load."""
    found = await reports.measure(stage, options.reports, 100_000.0, options.gets)
    a_day = found.get * SESSIONS + found.report * REPORTS
    measures = [
        verdict("reports acknowledged and not stored, of two API processes", found.accepted - found.stored, 0.0),
        verdict("reports acknowledged and not counted", abs(found.accepted - found.counted), 0.0),
        verdict("reports a minute", found.per_minute, 95_000.0, at_least=True),
        verdict("GETs answered beside reports / without", found.get_ratio, 0.9, at_least=True),
    ]
    rows = [
        [name, cost.api_s * 1e6, cost.database_s * 1e6, cost.whole_s * 1e6]
        for name, cost in (
            ("a GET that is answered 304", found.get),
            ("a report", found.report),
            (f"a device-day ({SESSIONS} GETs, {REPORTS} reports)", a_day),
            (f"a second of {FLEET:,} devices, on average", a_day * (FLEET / 86_400.0)),
        )
    ]
    title = "Processor time, microseconds, every caller with a token that was not seen before"
    return measures, [Table(title, ("of", "API", "PostgreSQL", "together"), rows)]


async def stored(stage: Stage, options: argparse.Namespace) -> Found:
    """A week's tables."""
    scale = options.scale
    found = await week.live(stage, round(FLEET * scale), round(SOCS * scale), MODELS)
    # What operators do does not grow with the fleet.
    grown = {name: 1.0 if name == "audit" else 1.0 / scale for name in week.TABLES}
    rows: list[list[str | float | None]] = [
        [name, found.rows[name], size / 2**20, found.rows[name] * grown[name], size / 2**20 * grown[name]]
        for name, size in found.bytes.items()
    ]
    total = sum(size * grown[name] for name, size in found.bytes.items())
    title = f"A week of {FLEET:,} devices, {SOCS} SoCs, {MODELS} models: {scale:g} inserted, the rest in proportion"
    measures = [
        verdict(f"database after a week of {FLEET:,} devices, GiB", total / 2**30, 16.0),
        verdict(f"seconds to begin a release to {found.devices:,} devices", found.begin_s, 10.0),
        verdict(f"seconds to look at a release to {found.devices:,} devices", found.steer_s, 1.0),
        verdict(f"seconds to take a release back from {found.devices:,} devices", found.end_s, 10.0),
    ]
    return measures, [Table(title, ("table", "rows", "MiB", "rows, whole", "MiB, whole"), rows)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    found.add_argument("--only", action="append", choices=("rule", "week", "reports"), help="may be repeated")
    found.add_argument("--database", metavar="URL", help="an empty PostgreSQL (default: one that pip installed)")
    found.add_argument("--devices", type=int, default=100_000, help="of a harmful release (default: %(default)s)")
    found.add_argument("--socs", type=int, default=500, help="of a harmful release (default: %(default)s)")
    found.add_argument("--harmful", type=int, default=100, help="releases (default: %(default)s)")
    found.add_argument("--harmless", type=int, default=1000, help="releases to a tenth of it (default: %(default)s)")
    found.add_argument("--reports", type=int, default=100_000, help="devices that report (default: %(default)s)")
    found.add_argument("--gets", type=float, default=500.0, help="GETs a second beside them (default: %(default)s)")
    found.add_argument("--scale", type=float, default=0.1, help="part of the week that is inserted")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every row holds, 1 when one does not."""
    options = parser().parse_args(arguments)
    chosen = options.only or ("rule", "week", "reports")
    measures: list[Measure] = []
    tables: list[Table] = []
    if "rule" in chosen:
        _add(releases(options), measures, tables)
    live: dict[str, Callable[[Stage, argparse.Namespace], object]] = {"week": stored, "reports": told}
    wanted = [work for name, work in live.items() if name in chosen]
    if wanted:
        with databases(options.database) as urls:
            for work in wanted:
                _add(uvloop.run(_on(urls[-1], work, options)), measures, tables)
    for table in tables:
        table.show()
    if options.json is not None:
        results.write(options.json, measures, tables=tables)
    return 0 if all(each.ok for each in measures) else 1


def _add(found: Found, measures: list[Measure], tables: list[Table]) -> None:
    measures += found[0]
    tables += found[1]


async def _on(url: str, work: Callable[..., object], options: argparse.Namespace) -> Found:
    with tempfile.TemporaryDirectory(prefix="hope-bench-") as folder:
        stage = Stage(url, Path(folder))
        await stage.open()
        try:
            return await work(stage, options)  # type: ignore[misc]
        finally:
            await stage.close()


if __name__ == "__main__":
    sys.exit(main())
