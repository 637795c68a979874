"""Which runtime runs a network that cannot be planned, or not yet: the fastest of those that give the same answer."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Final

import numpy as np

from agent_sdk.errors import ExecutionError, InputError, ModelError
from agent_sdk.feeds import feeds_of_ports
from agent_sdk.measure.timing import timed
from agent_sdk.model import Shapes
from agent_sdk.model.ports import bound
from agent_sdk.rounding import FLOAT32
from agent_sdk.runtimes.ort.whole import WholeOrt
from agent_sdk.runtimes.whole import WholeNetwork
from agent_sdk.verify import relative_error

ROUNDS: Final = 5
"""Timed runs of each, in turns; the median counts."""
Openable = str | os.PathLike[str] | bytes
"""What a runtime loads a network from, as ``Content.opened`` gives it: a path, or the bytes of a file."""


def open_whole(
    source: Openable,
    runtimes: Iterable[str],
    threads: int,
    shapes: Shapes | None = None,
    *,
    first: str | None = None,
) -> WholeNetwork:
    """Load a network on the fastest of these runtimes that agrees with ONNX Runtime on one random input.

    ``shapes`` are of inputs that the network leaves open. Where inputs cannot be drawn, because shapes are open all the
    same or they hold no numbers, it is the first one that loads it; with ``first`` too, beginning with the one of that
    name. Raises ModelError when all refuse it.
    """
    makers = _makers(source, threads)
    loaded: list[WholeNetwork] = []
    refusals = []
    for runtime in sorted(makers, key=lambda name: name != first):
        if runtime not in runtimes:
            continue
        try:
            loaded.append(makers[runtime]())
        except ExecutionError as error:
            refusals.append(str(error))
            continue
        feeds = None if first else feeds_of_ports(bound(loaded[0].inputs, shapes or {}), None)
        if feeds is None:
            break
        feed = feeds.feed(0)
    if not loaded:
        raise ModelError("; ".join(refusals) or "no runtime that loads whole networks is chosen")
    chosen = loaded[0] if len(loaded) == 1 else _fastest(loaded, feed or {})
    for other in loaded:
        if other is not chosen:
            other.close()
    return chosen


def _makers(source: Openable, threads: int) -> dict[str, Callable[[], WholeNetwork]]:
    makers: dict[str, Callable[[], WholeNetwork]] = {"onnxruntime": lambda: WholeOrt(source, threads)}
    if find_spec("openvino") is not None:
        # NOTE: imported late, because importing OpenVINO takes seconds and the package is optional.
        from agent_sdk.runtimes.openvino.whole import WholeOpenVino

        makers["openvino"] = lambda: WholeOpenVino(source)
    return makers


def _fastest(loaded: list[WholeNetwork], feed: Mapping[str, np.ndarray]) -> WholeNetwork:
    """The fastest of those that answer like the first one; the first one, where it does not answer this input."""
    try:
        right = loaded[0].run(feed)
    except (ExecutionError, InputError):
        return loaded[0]
    agreeing = [loaded[0]]
    for other in loaded[1:]:
        try:
            answer = other.run(feed)
            if relative_error(answer, right) <= FLOAT32:
                agreeing.append(other)
        except (ExecutionError, InputError, AttributeError, TypeError, ValueError):  # no answer, or none to compare
            continue
    times: dict[int, list[float]] = {index: [] for index in range(len(agreeing))}
    for _ in range(ROUNDS):
        for index, network in enumerate(agreeing):
            times[index].append(timed(partial(network.run, feed))[0])
    return agreeing[min(times, key=lambda index: statistics.median(times[index]))]
