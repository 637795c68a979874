"""Measure the planner service on loopback and print the table of what it must reach.

Examples:
  python -m benchmarks.service                                     SQLite and a PostgreSQL that pip installed
  python -m benchmarks.service --database postgresql://host/hope   on an (empty) database of yours
  python -m benchmarks.service --only cached --only waiters        some of the measures
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from benchmarks import results
from benchmarks.service import chaos, fleet, measures
from benchmarks.service.measures import Row
from benchmarks.service.stage import Stage, databases

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
    with tempfile.TemporaryDirectory(prefix="hope-bench-") as folder:
        stage = Stage(url, Path(folder))
        await stage.open()
        try:
            for name, run in chosen.items():
                print(f"# {stage.dialect}: {name} ...", file=sys.stderr, flush=True)
                try:
                    found = await run(stage)
                except Exception as error:  # noqa: BLE001 - one broken measure must not hide the others
                    reason = f"{type(error).__name__}: {error}"[:2000]
                    found = [measures.row(stage, name, None, "to be measured", False, error=reason)]
                for each in found:
                    print(line(each), flush=True)
                keep(found)
        finally:
            await stage.close()


def line(found: Row) -> str:
    """One row as text."""
    value = found["value"]
    shown = ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
    details = ", ".join(f"{key}={each}" for key, each in found["details"].items())
    verdict = "ok  " if found["ok"] else "MISS"
    return f"{verdict} {found['database']:<10} {found['measure']}: {shown} (must be {found['must']})  [{details}]"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.service", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
