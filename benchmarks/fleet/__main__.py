"""What a fleet lives through, in figures.

Examples:
  python -m benchmarks.fleet                       everything, on a PostgreSQL that pip installed
  python -m benchmarks.fleet --only rule           the releases' rule alone, without a database
  python -m benchmarks.fleet --only console        how fast, heavy and accessible the console is
  python -m benchmarks.fleet --json fleet.json     the rows as JSON too
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import uvloop

from benchmarks import cli, console
from benchmarks.fleet import reports, rule, week
from benchmarks.results import Found, Table, TableRow, joined, report, verdict
from benchmarks.service.stage import Stage, databases, staged

MODELS = 50
PARTS = ("rule", "week", "reports", "console")


def releases(options: argparse.Namespace) -> Found:
    """Releases with harm in a tenth of the SoCs, and releases without any, each to a fleet of its own."""
    size = {"devices": options.devices, "socs": options.socs}
    with ProcessPoolExecutor() as pool:
        bad = list(pool.map(partial(rule.simulate, **size, hit=0.1, slower=0.1), range(options.harmful)))
        small = {name: number // 10 for name, number in size.items()}
        fine = list(pool.map(partial(rule.simulate, **small, hit=0.0, slower=0.0), range(options.harmless)))
    shares = np.array([each.share for each in bad])
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
    measures = [
        verdict("reports acknowledged and not stored, of two API processes", found.accepted - found.stored, 0.0),
        verdict("reports acknowledged and not counted", abs(found.accepted - found.counted), 0.0),
        verdict("reports a minute", found.per_minute, 95_000.0, at_least=True),
        verdict("GETs answered beside reports / without", found.get_ratio, 0.9, at_least=True),
    ]
    rows: list[TableRow] = [
        [name, cost.api_s * 1e6, cost.database_s * 1e6, cost.whole_s * 1e6]
        for name, cost in (
            ("a GET that is answered 304", found.get),
            ("a report", found.report),
        )
    ]
    title = "Processor time, microseconds, every caller with a token that was not seen before"
    return measures, [Table(title, ("of", "API", "PostgreSQL", "together"), rows)]


async def lived(stage: Stage, options: argparse.Namespace) -> Found:
    """A week, sampled in time, of a fleet that is there as a whole."""
    found = await week.live(stage, options.fleet, options.fleet_socs, MODELS, options.window)
    day, whole = found.device_day, f"{found.devices:,} devices"
    measures = [
        verdict("week: reports acknowledged and not counted", abs(found.reported - found.counted), 0.0),
        verdict("week: calls refused or failed", 1.0 - _good(found.calls) / max(1, sum(found.calls.values())), 0.0),
        verdict(
            "week: calls refused or failed after the outage",
            sum(found.after_away.values()) - _good(found.after_away),
            0.0,
        ),
        verdict(f"week: a harmful release to {whole}, part of the fleet that got it", found.harmed, 0.05),
        verdict("week: a harmful release that did not come back by itself", 1.0 - found.undone, 0.0),
        verdict("week: processors that the whole fleet keeps busy", day.whole_s * found.devices / week.DAY_S, 2.0),
        verdict(f"week: database of {whole}, GiB", sum(found.bytes.values()) / 2**30, 16.0),
    ]
    cost: list[TableRow] = [
        ["API, milliseconds per device-day", day.api_s * 1e3],
        ["PostgreSQL, milliseconds per device-day", day.database_s * 1e3],
        ["both, processor-hours of the fleet per day", day.whole_s * found.devices / 3600.0],
        [f"calls of {week.DAYS} windows of {found.window_s:g} s", float(sum(found.calls.values()))],
        ["calls while the database was away that were told so (503)", float(found.away[503])],
    ]
    cost += [[f"seconds {name}", seconds] for name, seconds in found.took_s.items()]
    sizes: list[TableRow] = [
        [name, found.rows[name], size / 2**20, size / found.rows[name] if found.rows[name] else None]
        for name, size in found.bytes.items()
    ]
    title = f"A week of {whole}, {options.fleet_socs} SoCs, {MODELS} models"
    sampled = f"{title}: every row is there, of each day {found.window_s:g} s at the whole rate are lived"
    return measures, [
        Table(sampled, ("of the week", "value"), cost),
        Table(f"{title}: tables with their indexes", ("table", "rows", "MiB", "bytes a row"), sizes),
    ]


def _good(statuses: Mapping[int, int]) -> int:
    return sum(count for status, count in statuses.items() if status < 400)


def parser() -> cli.Parser:
    """The command line."""
    found = cli.measuring("fleet", __doc__)
    found.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    found.add_argument("--database", metavar="URL", help="an empty PostgreSQL (default: one that pip installed)")
    found.add_argument(
        "--devices", type=int, default=100_000, help="of a harmful release, and of the console (default: %(default)s)"
    )
    found.add_argument("--socs", type=int, default=500, help="of a harmful release (default: %(default)s)")
    found.add_argument("--harmful", type=int, default=100, help="releases (default: %(default)s)")
    found.add_argument("--harmless", type=int, default=1000, help="releases to a tenth of it (default: %(default)s)")
    found.add_argument("--reports", type=int, default=100_000, help="devices that report (default: %(default)s)")
    found.add_argument("--gets", type=float, default=500.0, help="GETs a second beside them (default: %(default)s)")
    found.add_argument("--fleet", type=int, default=1_000_000, help="devices of the week (default: %(default)s)")
    found.add_argument("--fleet-socs", type=int, default=500, help="their SoCs (default: %(default)s)")
    found.add_argument("--window", type=float, default=5.0, help="seconds of each day (default: %(default)s)")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every row holds, 1 when one does not."""
    options = parser().parse_args(arguments)
    chosen = options.only or PARTS
    found = [releases(options)] if "rule" in chosen else []
    live: dict[str, Callable[[Stage, argparse.Namespace], Awaitable[Found]]] = {"week": lived, "reports": told}
    wanted = [work for name, work in live.items() if name in chosen]
    if wanted:
        with databases(options.database) as urls:
            found += [uvloop.run(_on(urls[-1], work, options)) for work in wanted]
    if "console" in chosen:
        found.append(console.look(options.devices))
    measures, tables = joined(found)
    report(options.json, measures, tables)
    return 0 if all(each.ok for each in measures) else 1


async def _on(
    url: str, work: Callable[[Stage, argparse.Namespace], Awaitable[Found]], options: argparse.Namespace
) -> Found:
    async with staged(url) as stage:
        return await work(stage, options)


if __name__ == "__main__":
    sys.exit(main())
