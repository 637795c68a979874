"""What a network takes to read, hash, merge, sign and cut, and in how much memory: ``python -m benchmarks.reading``.

Times are the best of a few repetitions, in milliseconds of CPU time (so that a busy machine does not count).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import hope_zoo as zoo
from agent_sdk.model import Model, extract, read_model
from benchmarks import cli
from hope_schema import ModelGraph, SuperOp, merge

Fresh = TypeVar("Fresh")

NETWORKS = ("inception_v1", "lstm", "nasnet_mobile", "nasnet_large")


def best_ms(work: Callable[[], object], repetitions: int) -> float:
    """Return the shortest CPU time of several runs, in milliseconds."""
    times = []
    for _ in range(repetitions):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def _on_next(fresh: Iterator[Fresh], work: Callable[[Fresh], object]) -> None:
    """Work on one that nobody has worked on: properties are computed once per graph."""
    work(next(fresh))


def _cut_all(model: Model, supers: Sequence[SuperOp]) -> None:
    for group in supers:
        extract(model, [op.id for op in group.ops], group.inputs, group.outputs)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per network."""
    parser = cli.parser("reading", __doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--repetitions", type=int, default=5)
    options = parser.parse_args(arguments)
    columns = ("ops", "super-ops", "signatures", "read", "check", "hash", "merge", "sign", "cut all", "peak MB")
    print(f"{'network':16}" + "".join(f"{column:>12}" for column in columns) + "   (times in ms)")
    for name in options.networks:
        zoo.path(name)
        read = best_ms(partial(read_model, name), 2)
        model = read_model(name)
        text = model.graph.model_dump_json()

        def fresh(text: str = text) -> ModelGraph:
            return ModelGraph.model_validate_json(text)

        check = best_ms(fresh, options.repetitions)
        graphs = iter([fresh() for _ in range(2 * options.repetitions)])
        hashing = best_ms(partial(_on_next, graphs, lambda graph: graph.model_hash), options.repetitions)
        merging = best_ms(partial(_on_next, graphs, merge), options.repetitions)
        groups = iter([merge(fresh()) for _ in range(options.repetitions)])
        signing = best_ms(
            partial(_on_next, groups, lambda group: [one.signature for one in group]), options.repetitions
        )
        supers = merge(model.graph)
        cutting = best_ms(partial(_cut_all, model, supers), 2)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        counts = (len(model.graph.ops), len(supers), len({group.signature for group in supers}))
        times = (read, check, hashing, merging, signing, cutting)
        print(
            f"{name:16}" + "".join(f"{n:12}" for n in counts) + "".join(f"{t:12.1f}" for t in times) + f"{peak:12.0f}"
        )


if __name__ == "__main__":
    main()
