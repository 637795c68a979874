"""What must hold of the GPU's figures, and their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import gpu_sessions, pair
from benchmarks.results import Measure, Table, verdict

CHAINS = frozenset({"squeezenet", "densenet121", "resnet50", "vgg19"})
ONE_STREAM_MUST = {
    "inception_v1": 0.62,
    "inception_v3": 0.62,
    "inception_v4": 0.62,
    "nasnet_large": 0.50,
    "hrnet_w18": 0.50,
    "pnasnet_large": 0.60,
}
BEST_MUST = {"inception_v1": 0.52, "inception_v3": 0.52, "inception_v4": 0.52, "nasnet_large": 0.42, "hrnet_w18": 0.42}
BEST_MUST |= dict.fromkeys(CHAINS, 1.0)
RIGHT = {"fp32": 1e-4, "tf32": 2e-3, "fp16": 1e-2}


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[Measure]:
    """What must hold of these rows."""
    found = []
    for row in rows:
        name, label = row["model"], f"{row['model']} {row['precision']}"
        if row["config"] == "auto":
            if name in ONE_STREAM_MUST:
                what = f"{label}: ours / our kernels on one stream"
                found.append(verdict(what, row["ratio_to_one_stream"], ONE_STREAM_MUST[name]))
            if name in CHAINS:
                found.append(verdict(f"{label}: ours / our kernels on one stream", row["ratio_to_one_stream"], 1.02))
            if row["precision"] == "fp16" and name in BEST_MUST and "ratio_to_best" in row:
                what = f"{label}: ours / the best of what is not ours ({row['best']})"
                found.append(verdict(what, row["ratio_to_best"], BEST_MUST[name]))
            if row["ratio_to_compile"] is not None:
                found.append(verdict(f"{label}: ours / the better torch.compile", row["ratio_to_compile"], 0.90))
            found.append(verdict(f"{label}: planned against measured", abs(row["prediction_error"]), 0.10))
            found.append(verdict(f"{label}: error", row["max_rel_error"], RIGHT[row["precision"]]))
            found.append(verdict(f"{label}: error / the format's own", row["max_rel_error"] / row["rounding_error"], 2))
            one = next(o for o in rows if _same(o, row) and o["config"] == "one stream")
            found.append(
                verdict(f"{label}: memory reserved / one stream's", row["graph_bytes"] / one["graph_bytes"], 2)
            )
            found.append(verdict(f"{label}: memory in use / one stream's", row["live_bytes"] / one["live_bytes"], 2))
        if row["config"].endswith("in flight graph"):
            ours = next(o for o in rows if _same(o, row) and o["config"] == "auto")
            if not ours.get("in_flight_us"):
                continue
            what = f"{label}: throughput of our session / of torch's graph, {row['config'].removesuffix(' graph')}"
            found.append(verdict(what, row["median_us"] / ours["in_flight_us"], 1.0, at_least=True))
        if row["config"] == "sessions":
            what = f"{label}: of {row['sessions']} sessions"
            found.append(
                verdict(f"{what}, device memory / early on", row["device_bytes_late"] / row["device_bytes_early"], 1.02)
            )
            found.append(verdict(f"{what}, threads / early on", row["threads_late"] / row["threads_early"], 1))
    return found + pair.verdicts(rows) + gpu_sessions.verdicts(rows)


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two rows are of one network in one precision."""
    return bool((a["model"], a["precision"]) == (b["model"], b["precision"]))


def flight_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Microseconds a run where several are in flight, beside our plan, run after run."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        own = found.setdefault((row["model"], row["precision"]), {})
        own[row["config"]] = row.get("median_us", 0.0)
        if row.get("in_flight_us"):
            own["in flight, our session"] = row["in_flight_us"]
    flown = sorted({label for own in found.values() for label in own if "in flight" in label})
    return Table(
        "Microseconds a run, several in flight, each on a stream of its own; and our plan, run after run",
        ("network", "precision", *flown, "auto"),
        [(*key, *(own.get(one) for one in (*flown, "auto"))) for key, own in found.items() if own.keys() & {*flown}],
    )


def network_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Milliseconds of each network by configuration, and how our plan stands beside them.

    The last five columns are from arrays on the host to arrays there, all others on the device's clock. What is between
    a plan and what bounds it stands as the part that the bound is of it.
    """
    columns = ("eager", "graph", "one stream", "auto")
    found: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["model"], row["precision"]), {})[row["config"]] = row
    whole = {key: own for key, own in found.items() if all(one in own for one in columns)}
    device = ("ratio_to_best", "best", "streams", "longest_path_us")
    arrays = ("predicted_us", "wall_us", "prediction_error")
    return Table(
        "What each network takes, milliseconds",
        (
            *("network", "precision", "GPU", *columns, "fastest other", "ours / best", "best"),
            *("streams of ours", "longest path, µs", "longest path / ours"),
            *(
                "arrays to arrays: bound, µs",
                "bound / planned",
                "planned, µs",
                "measured, µs",
                "planned / measured - 1",
            ),
        ),
        [
            (
                *key,
                own["auto"].get("gpu"),
                *(own[one]["median_us"] / 1e3 for one in (*columns, own["auto"]["best"])),
                *(own["auto"].get(one) for one in device),
                _part(own["auto"], "longest_path_us", "median_us"),
                own["auto"].get("bound_us"),
                _part(own["auto"], "bound_us", "predicted_us"),
                *(own["auto"].get(one) for one in arrays),
            )
            for key, own in whole.items()
        ],
    )


def _part(row: Mapping[str, Any], one: str, other: str) -> float | None:
    """What part one figure is of another, if the row has both."""
    return row[one] / row[other] if row.get(one) and row.get(other) else None
