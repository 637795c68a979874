"""Attack a planner on loopback, and write down what the others notice.

Examples:
  python -m benchmarks.attack --json benchmarks/results/attack.json
  python -m benchmarks.attack --database sqlite --only questions --only releases
  python -m benchmarks.attack --only unread --after 600
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import uvloop

from benchmarks import cli, results
from benchmarks.attack import beside, bodies, liars, rules
from benchmarks.service import measures
from benchmarks.service.measures import Parts, Row
from benchmarks.service.stage import databases

ALONE: dict[str, Callable[[], list[Row]]] = {
    "liars": liars.liars,
    "file": lambda: [liars.small_file()],
}
"""What needs no server."""
PARTS: Parts = {
    "single": lambda stage, _: bodies.single(stage),
    "beside": lambda stage, options: beside.beside(stage, options.seconds, options.attacks, options.after),
    "uploads": lambda stage, _: beside.uploads(stage),
    "claims": lambda stage, options: rules.claims(stage, options.seconds),
    "trust": lambda stage, _: rules.trust(stage),
    "assignments": lambda stage, _: rules.assignments(stage),
    "pages": lambda stage, _: rules.pages(stage),
    "releases": lambda stage, _: rules.releases(stage),
    "starts": lambda stage, _: rules.starts(stage),
    "clocks": lambda stage, _: rules.clocks(stage),
    "keys": lambda stage, options: bodies.first_plan(stage, options.keys),
    "large": lambda stage, _: bodies.large(stage),  # its better plan waits in the queue, and takes several budgets
    "audit": lambda stage, _: rules.audit(stage),  # the last: it leaves a log that is not what was written
}
"""What is tried on each database; ``beside`` tries the attacks that others may notice, all or some of them."""


def parser() -> cli.Parser:
    """The command line."""
    found = cli.measuring("attack", __doc__)
    names = (*ALONE, *PARTS, *beside.ATTACKS)
    found.add_argument("--only", action="append", choices=names, help="this alone (may be repeated)")
    found.add_argument("--database", choices=("sqlite", "postgresql"), help="this one alone")
    found.add_argument("--seconds", type=float, default=3.0, help="of each attack on others (default: %(default)s)")
    found.add_argument(
        "--after", type=float, help="seconds after each attack at which the memory that it keeps is read"
    )
    found.add_argument("--keys", type=int, default=500, help="that the greedy device asks for (default: %(default)s)")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run; 0 when every row holds."""
    options = parser().parse_args(arguments)
    only = set(options.only or (*ALONE, *PARTS))
    options.attacks = [name for name in beside.ATTACKS if name in only or "beside" in only]
    only |= {"beside"} if options.attacks else set()
    rows: list[Row] = []

    def keep(found: list[Row]) -> None:
        rows.extend(found)
        results.report(options.json, rows)

    for name in [name for name in ALONE if name in only]:
        found = ALONE[name]()
        print(*map(measures.line, found), sep="\n", flush=True)
        keep(found)
    parts = {name: part for name, part in PARTS.items() if name in only}
    if parts:
        with databases(None) as urls:
            for url in urls:
                if options.database is None or url.startswith(options.database):
                    uvloop.run(measures.measure(url, parts, options, keep))
    return 0 if all(each["ok"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
