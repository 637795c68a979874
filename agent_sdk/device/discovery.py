"""Which processors does this device have? Every core, all cores together, each class of cores, per runtime."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from agent_sdk.device.cores import name_cores
from agent_sdk.device.soc import Soc, read_soc
from agent_sdk.errors import UnknownNameError
from agent_sdk.paths import cache_directory
from agent_sdk.runtimes.base import Processor, ProcessorLost
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor, installed_providers
from agent_sdk.runtimes.torch.choice import Choice, accelerators, installed, parsed

log = logging.getLogger(__name__)

Makers = Iterator[tuple[str, Callable[[], Processor]]]
"""Processor ids with what makes each, so that naming one does not start the others."""

MAX_SINGLE_CORES = 8
"""Single cores offered per core class; beyond, more of them add solve time and no new choice."""
RUNTIMES = ("ort", "ov", "torch")
EXTRA = "it needs torch: pip install 'hope[torch]'"


def discover(
    spec: str | None = None, *, soc: Soc | None = None, cache: Path | None = None, precision: str = "fp32"
) -> list[Processor]:
    """The processors to plan with.

    ``spec`` is a comma-separated list of ids or runtimes (``"ort@0,ort@1"``, ``"ort"``, ``"ort,ov@0-1"``); without
    it: every core, each class of several equal cores, and all cores together, for ONNX Runtime and, where the package
    is installed and works, OpenVINO, the accelerators either of them can drive, and the GPUs that torch drives, where
    that is installed. ``precision`` is what torch computes float32 in unless an id says it (``cuda:0/fp16``); a part
    of a GPU is had by naming it (``cuda:0/8sm``), torch on the cores as ``cpu``. A runtime that ``spec`` does not
    name is left alone. ``cache`` is a directory that ONNX Runtime's optimised graphs are kept in (the user's cache
    directory by default).

    Raises UnknownNameError for an id or a runtime that this device does not have, listing what it has; ProcessorLost
    where a named one does not start.
    """
    soc = soc or read_soc()
    frozen = FrozenGraphs(cache if cache is not None else cache_directory() / "ort")
    if spec is None:
        return list(_started(_makers(soc, frozen, precision=precision)))
    names = [part.strip() for part in spec.split(",")]
    makers = dict(_makers(soc, frozen, {re.split("[@-]", name)[0] for name in names}, precision))
    chosen: dict[str, Callable[[], Processor]] = {}
    for name in names:
        choice = parsed(name, precision)
        if choice is not None:
            if not installed():
                raise ProcessorLost(f"processor '{name}' cannot be used: {EXTRA}")
            chosen[choice.id] = partial(_torch, soc, choice)
            continue
        matching = {key: make for key, make in makers.items() if name in (key, key.partition("@")[0])}
        matching |= {key: make for key, make in makers.items() if name == "torch" and parsed(key) is not None}
        if not matching:
            raise UnknownNameError("processor", name, dict(_makers(soc, frozen)))
        chosen |= matching
    return [make() for make in chosen.values()]


def _started(makers: Makers) -> Iterator[Processor]:
    """What starts; the rest is left out, with a word in the log."""
    for name, make in makers:
        try:
            yield make()
        except ProcessorLost as error:
            log.warning("'%s' is left out: %s", name, error)


def core_sets(soc: Soc) -> list[frozenset[int]]:
    """Single cores, then every class of several equal cores, then all cores together; each set once."""
    classes: dict[str, list[int]] = {}
    for core in soc.cores:
        classes.setdefault(soc.core_class[core], []).append(core)
    singles = [frozenset({core}) for own in classes.values() for core in own[:MAX_SINGLE_CORES]]
    gangs = [frozenset(own) for own in classes.values()]
    return list(dict.fromkeys([*singles, *gangs, frozenset(soc.cores)]))


def _makers(soc: Soc, frozen: FrozenGraphs, runtimes: Collection[str] = RUNTIMES, precision: str = "fp32") -> Makers:
    if "ort" in runtimes:
        yield from _ort(soc, frozen)
    if "ov" in runtimes and find_spec("openvino") is not None:
        try:
            yield from _openvino(soc, frozen)
        except (ImportError, OSError, RuntimeError) as error:
            log.warning("OpenVINO is installed, but does not start: %s", error)
    if "torch" in runtimes and installed():
        try:
            for choice in accelerators(precision):
                yield choice.id, partial(_torch, soc, choice)
        except (ImportError, OSError, RuntimeError) as error:
            log.warning("torch is installed, but does not start: %s", error)


def _torch(soc: Soc, choice: Choice) -> Processor:
    try:
        # NOTE: imported late, because importing torch takes seconds and the package is optional.
        from agent_sdk.runtimes.torch.processor import TorchProcessor
    except (ImportError, OSError) as error:
        raise ProcessorLost(f"processor '{choice.id}' cannot be used: torch does not start: {error}") from error
    return TorchProcessor(soc, choice)


def _ort(soc: Soc, frozen: FrozenGraphs) -> Makers:
    for cores in core_sets(soc):
        yield f"ort@{name_cores(tuple(sorted(cores)))}", partial(OrtProcessor, soc, cores, frozen=frozen)
    for provider in installed_providers():
        make = partial(OrtProcessor, soc, frozenset(soc.cores), provider, frozen=frozen)
        yield make().id, make


def _openvino(soc: Soc, frozen: FrozenGraphs) -> Makers:
    # NOTE: imported late, because importing OpenVINO takes seconds and the package is optional.
    from agent_sdk.runtimes.openvino.processor import OpenVinoProcessor, accelerators

    devices = accelerators()  # first, because where the runtime does not start it has no CPU either
    for cores in core_sets(soc):
        yield f"ov@{name_cores(tuple(sorted(cores)))}", partial(OpenVinoProcessor, soc, cores, lights=frozen.lights)
    for device in devices:
        accelerator = partial(OpenVinoProcessor, soc, frozenset(soc.cores), device, lights=frozen.lights)
        yield accelerator().id, accelerator
