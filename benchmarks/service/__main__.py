"""Measure the planner service on loopback and print the table of what it must reach.

Examples:
  python -m benchmarks.service                                     SQLite and a PostgreSQL that pip installed
  python -m benchmarks.service --database postgresql://host/hope   on an (empty) database of yours
  python -m benchmarks.service --only cached --only waiters        some of the measures
"""

from __future__ import annotations

import sys

import uvloop

from benchmarks import cli, results
from benchmarks.service import chaos, fleet, measures
from benchmarks.service.measures import Parts, Row
from benchmarks.service.stage import databases

MEASURES: Parts = {
    "cached": lambda stage, options: measures.cached(stage, options.seconds),
    "cold": lambda stage, options: measures.cold(stage, options.socs // 10),
    "burst": lambda stage, options: measures.burst(stage, options.requests, options.keys),
    "waiters": lambda stage, options: measures.waiters(stage, options.waiters),
    "kills": lambda stage, options: chaos.kills(stage, options.kills),
    "ingest": lambda stage, options: measures.ingest(stage, options.seconds),
    "liars": lambda stage, options: measures.liars(stage),
    "bomb": lambda stage, options: measures.bomb(stage),
    "fleet": lambda stage, options: fleet.fleet(stage, options.devices, options.socs, options.models),
}


def parser() -> cli.Parser:
    """The command line."""
    found = cli.measuring("service", __doc__)
    found.add_argument("--database", metavar="URL", help="an empty database (default: SQLite, then PostgreSQL)")
    found.add_argument("--only", action="append", choices=MEASURES, help="run this measure alone (may be repeated)")
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
    """Run the benchmark; 0 when every row holds, 1 when one does not."""
    options = parser().parse_args(arguments)
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        results.report(options.json, rows)

    try:
        with databases(options.database) as urls:
            for url in urls:
                chosen = {name: run for name, run in MEASURES.items() if name in (options.only or MEASURES)}
                uvloop.run(measures.measure(url, chosen, options, keep))
    except KeyboardInterrupt:
        return 130
    missed = [each for each in rows if not each["ok"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} rows hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
