"""Measure the planner service on loopback and print the table of what it must reach.

Examples:
  python -m benchmarks.service                                     SQLite and a PostgreSQL that pip installed
  python -m benchmarks.service --database postgresql://host/hope   on an (empty) database of yours
  python -m benchmarks.service --only cached --only waiters        some of the measures
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks import cli, results
from benchmarks.service import chaos, fleet, measures
from benchmarks.service.measures import Row
from benchmarks.service.stage import Stage, databases, staged

Measure = Callable[[Stage], Awaitable[list[Row]]]


def plan_of(options: argparse.Namespace) -> dict[str, Measure]:
    """The measures, by name, at the chosen scale."""
    return {
        "cached": lambda stage: measures.cached(stage, options.seconds),
        "burst": lambda stage: measures.burst(stage, options.requests, options.keys),
        "waiters": lambda stage: measures.waiters(stage, options.waiters),
        "kills": lambda stage: chaos.kills(stage, options.kills),
        "ingest": lambda stage: measures.ingest(stage, options.seconds),
        "liars": measures.liars,
        "bomb": measures.bomb,
        "fleet": lambda stage: fleet.fleet(stage, options.devices, options.socs, options.models),
    }


async def measure(url: str, chosen: dict[str, Measure], keep: Callable[[list[Row]], None]) -> None:
    """Run the chosen measures on one database; the rows of each are kept before the next begins."""
    async with staged(url) as stage:
        for name, run in chosen.items():
            print(f"# {stage.dialect}: {name} ...", file=sys.stderr, flush=True)
            began = time.monotonic()
            try:
                found = await run(stage)
            except Exception as error:  # noqa: BLE001 - one broken measure must not hide the others
                reason = f"{type(error).__name__}: {error}"[:2000]
                found = [measures.row(stage, name, None, "to be measured", False, error=reason)]
            for each in found:
                print(measures.line(each), flush=True)
            print(f"# {stage.dialect}: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            keep(found)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = cli.parser("service", __doc__)
    found.add_argument("--database", metavar="URL", help="an empty database (default: SQLite, then PostgreSQL)")
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    found.add_argument("--only", action="append", help="run this measure alone (may be repeated)")
    found.add_argument("--seconds", type=float, default=5.0, help="per throughput figure (default: %(default)s)")
    found.add_argument("--requests", type=int, default=2000, help="of a burst (default: %(default)s)")
    found.add_argument("--keys", type=int, default=100, help="of the second burst (default: %(default)s)")
    found.add_argument("--waiters", type=int, default=1000)
    found.add_argument("--kills", type=int, default=50)
    found.add_argument("--devices", type=int, default=100_000)
    found.add_argument("--socs", type=int, default=200)
    found.add_argument("--models", type=int, default=20)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 0 when every row holds, 1 when one does not, 2 for bad input."""
    options = parser().parse_args(arguments)
    everything = plan_of(options)
    unknown = set(options.only or ()) - set(everything)
    if unknown:
        print(f"unknown measure {sorted(unknown)[0]}; choose from {', '.join(everything)}", file=sys.stderr)
        return 2
    chosen = {name: run for name, run in everything.items() if not options.only or name in options.only}
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        if options.json is not None:
            results.write(options.json, rows)

    try:
        with databases(options.database) as urls:
            for url in urls:
                uvloop.run(measure(url, chosen, keep))
    except KeyboardInterrupt:
        return 130
    missed = [each for each in rows if not each["ok"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} rows hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
