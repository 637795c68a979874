"""From a ModelGraph and a Profile to a Problem. Every rule that fills a missing figure stands here."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np

from hope_schema import HOST, ModelGraph, Processor, Profile, SuperOp, merge
from planner_api.planning.problem import FloatArray, PlanningError, Problem
from planner_api.planning.problem.feasible import prune
from planner_api.planning.problem.transfers import TransferTable

SHOWN = 5
"""How many names a sentence on filled figures lists before it says how many more there are."""


def build_problem(
    graph: ModelGraph,
    profile: Profile,
    processors: Sequence[str] | None = None,
) -> Problem:
    """Merge a graph into super-ops and look up what each costs on each processor.

    Filled by rule, and flagged in ``Problem.filled``:

    - a latency that was never measured on a kind of processor is scaled from the kind that shares most
      signatures with it, by the median ratio over those signatures; where none is shared the op stays off
      that processor until it is measured;
    - a transfer that was never measured follows its direction's line (``transfers.fit``), or the rules of
      ``transfers.TransferTable`` where the direction has no row at all.

    Launch and hand-over overheads are part of every transfer between two processors.

    Args:
        graph: the model.
        profile: the figures of one SoC at one frequency.
        processors: ids of the candidates; None takes all that the profile knows.

    Raises:
        PlanningError: an unknown processor; an op that no candidate supports or that was measured nowhere; a
            tensor that cannot get from where it can be produced to where it can be read.
    """
    candidates = _candidates(profile, processors)
    supers = merge(graph)
    filled: list[str] = []
    latency = _latencies(supers, candidates, profile, filled)
    names = tuple(dict.fromkeys((*graph.inputs, *(name for op in supers for name in op.outputs))))
    index = {name: tensor for tensor, name in enumerate(names)}
    producer = np.full(len(names), -1, dtype=np.int64)
    for op, super_op in enumerate(supers):
        for name in super_op.outputs:
            producer[index[name]] = op
    kept = set(graph.outputs)
    problem = Problem(
        ops=tuple(op.id for op in supers),
        processors=tuple(processor.id for processor in candidates),
        latency_us=latency,
        conflicts=_conflicts(candidates),
        producer=producer,
        reads=tuple(tuple(index[name] for name in op.inputs) for op in supers),
        is_output=np.array([name in kept for name in names], dtype=np.bool_),
        transfer_us=_transfers(graph, names, candidates, profile, filled),
        mode="overlap" if any(channel.busy for channel in profile.channels) else "blocking",
        tensors=names,
        filled=tuple(filled),
    )
    return prune(problem)


def _candidates(profile: Profile, wanted: Sequence[str] | None) -> list[Processor]:
    known = {processor.id: processor for processor in profile.processors}
    if wanted is None:
        wanted = tuple(known)
    if not wanted:
        raise PlanningError(f"there is no processor to plan for: the profile of '{profile.soc}' lists none")
    for name in wanted:
        if name not in known:
            raise PlanningError(
                f"processor '{name}' is not in the profile of '{profile.soc}', which knows {', '.join(known) or 'none'}"
            )
    return [known[name] for name in dict.fromkeys(wanted)]


def _conflicts(candidates: list[Processor]) -> np.ndarray:
    held = [{(processor.host, resource) for resource in processor.resources} for processor in candidates]
    return np.array([[bool(one & two) for two in held] for one in held], dtype=np.bool_)


def _latencies(
    supers: tuple[SuperOp, ...], candidates: list[Processor], profile: Profile, filled: list[str]
) -> FloatArray:
    """The (n, P) latencies: measured, ``inf`` where unsupported, scaled where never measured."""
    rows = profile.latencies
    known: dict[str, dict[str, float | None]] = defaultdict(dict)
    for signature, kind, us in zip(rows.signature, rows.kind, rows.us, strict=True):
        known[kind][signature] = us
    latency = np.full((len(supers), len(candidates)), math.inf)
    scaled: dict[tuple[str, str], list[str]] = defaultdict(list)
    left_out: dict[str, list[str]] = defaultdict(list)
    ratios: dict[tuple[str, str], tuple[int, float]] = {}
    kinds = sorted(known)
    for op, super_op in enumerate(supers):
        signature = super_op.signature
        if all(known[processor.kind].get(signature, 0.0) is None for processor in candidates):
            raise PlanningError(f"no processor supports op '{super_op.id}' ({super_op.ops[0].type})")
        for column, processor in enumerate(candidates):
            kind = processor.kind
            if signature in known[kind]:
                us = known[kind][signature]
                latency[op, column] = math.inf if us is None else us
                continue
            others = [other for other in kinds if other != kind and known[other].get(signature) is not None]
            for other in others:
                if (other, kind) not in ratios:
                    ratios[other, kind] = _ratio(known[other], known[kind])
            source = max(others, key=lambda other: ratios[other, kind][0], default=None)
            if source is None or ratios[source, kind][0] == 0:
                left_out[processor.id].append(super_op.id)
                continue
            base = known[source][signature]
            assert base is not None
            latency[op, column] = base * ratios[source, kind][1]
            scaled[processor.id, source].append(super_op.id)
        if not np.isfinite(latency[op]).any():
            raise PlanningError(
                f"op '{super_op.id}' ({super_op.ops[0].type}) has no measured latency on any candidate processor"
            )
    for (name, source), ops in scaled.items():
        count, ratio = ratios[source, next(p.kind for p in candidates if p.id == name)]
        filled.append(
            f"latency on '{name}' scaled by {ratio:.4g} from '{source}' (median over {count} signatures): {_list(ops)}"
        )
    for name, ops in left_out.items():
        filled.append(f"never measured on '{name}' and nothing to scale from, so not placed there: {_list(ops)}")
    return latency


def _ratio(base: dict[str, float | None], target: dict[str, float | None]) -> tuple[int, float]:
    """How many signatures two kinds share, and the median of target / base over them."""
    pairs = [(base[signature], us) for signature, us in target.items() if signature in base]
    ratios = [us / other for other, us in pairs if us is not None and other]
    return (len(ratios), median(ratios)) if ratios else (0, math.nan)


def _list(names: list[str]) -> str:
    shown = ", ".join(f"'{name[:80]}'" for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _transfers(
    graph: ModelGraph, names: Sequence[str], candidates: list[Processor], profile: Profile, filled: list[str]
) -> FloatArray:
    """The (T, P + 1, P + 1) transfer costs, overheads included.

    Only moves that can happen are looked up (and flagged where they are filled): graph inputs leave the host,
    graph outputs reach it, and what an op writes for another goes between processors. All others stay zero.
    """
    table = TransferTable(profile.transfers, profile.channels)
    p = len(candidates)
    cost = np.zeros((len(names), p + 1, p + 1))
    inputs, outputs = set(graph.inputs), set(graph.outputs)
    rows = {
        "in": [t for t, name in enumerate(names) if name in inputs],
        "out": [t for t, name in enumerate(names) if name in outputs and name not in inputs],
        "across": [t for t, name in enumerate(names) if name not in inputs and name in graph.consumers],
    }
    overheads = profile.overheads
    sentences: dict[str, None] = {}
    for source in range(p + 1):
        for target in range(p + 1):
            if source == target:
                continue
            a = candidates[source] if source < p else None
            b = candidates[target] if target < p else None
            extra = 0.0
            if a is not None and b is not None:
                extra = overheads.end_us.get(a.kind, 0.0) + overheads.handover_us + overheads.launch_us.get(b.kind, 0.0)
            moved = rows["in" if a is None else "out" if b is None else "across"]
            start, end = a.place if a else HOST, b.place if b else HOST
            column, note = table.costs([graph.tensor[names[t]].type for t in moved], start, end)
            cost[moved, source, target] = np.asarray(column) + extra
            if note:
                sentences[f"transfers from '{start}' to '{end}': {note}"] = None
    filled.extend(sentences)
    return cost
