"""A network on several core groups at once, so that a policy may choose how many cores a run gets.

Every group computes the same network: a whole on one processor, compiled once for each. The answers were judged by the
network's file before anybody gets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from math import inf
from typing import Final

from agent_sdk.engine import Device, Executor
from agent_sdk.errors import ProcessorError
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.rivals import compiled_singles, distinct
from agent_sdk.journey.trial import hold_trial, warm
from agent_sdk.journey.verify import agreement
from agent_sdk.model.weights import copies_at_once
from agent_sdk.runtimes.base import Processor
from hope_schema import HOST

ROUNDS: Final = 5
"""Runs by which the groups are timed."""


def groups_of(device: Device, planned: Mapping[str, Processor]) -> list[str]:
    """The core groups that a network can be spread over, the widest first: those whose answers need no second look."""
    fit = [
        name
        for name, own in planned.items()
        if name in device.processors and own.spec.memory == HOST and own.trusted is None
    ]
    runtime = min((planned[name].spec.runtime for name in fit), key=lambda one: one != "ort", default="")
    fit = [name for name in fit if planned[name].spec.runtime == runtime]
    return sorted(fit, key=lambda name: -len(planned[name].spec.resources))


def spread(prepared: Prepared, device: Device, names: list[str]) -> tuple[dict[str, Executor], dict[str, float]]:
    """The network ready on each of these processors; and what it takes on each kind, by one processor of that kind.

    There are as many copies as memory has room for, of each width at least one. Raises ProcessorError where none runs.
    """
    kinds = distinct({name: device.processors[name] for name in names})
    room = max(len(kinds), copies_at_once(prepared.model) - 1)
    names = [*kinds, *(name for name in names if name not in kinds)][:room]
    with ExitStack() as opened:
        executors, refused = compiled_singles(names, prepared.model, device)
        for executor in executors.values():
            opened.callback(executor.close)
        feed = prepared.drawn.tried[0]
        answers, failures = warm(executors, feed)
        right = prepared.reference.outputs(feed)
        wrong = agreement(prepared.model.graph, executors, answers, right).wrong
        fine = {name: own for name, own in executors.items() if name not in {**failures, **wrong}}
        if not fine:
            raise ProcessorError(f"'{prepared.model.name}' runs right on no core group: {[*refused, *wrong.values()]}")
        trial = hold_trial({name: fine[name] for name in kinds if name in fine}, feed, [(ROUNDS, inf)])
        timed = {device.processors[name].spec.kind for name in trial.us}
        kept = {name: own for name, own in fine.items() if device.processors[name].spec.kind in timed}
        opened.pop_all()
    for name in executors.keys() - kept.keys():
        executors[name].close()
    return kept, dict(trial.us)
