"""Which processors does this device have? Every runtime on groups of cores, and the accelerators it can drive."""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from agent_sdk.errors import ProcessorLost, UnknownNameError
from agent_sdk.machine.cores import name_cores, parse_cores
from agent_sdk.machine.soc import Soc, read_soc
from agent_sdk.machine.topology import core_groups
from agent_sdk.paths import cache_directory
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor, installed_providers, plain_configurations
from agent_sdk.runtimes.torch.choice import MIXED, PRECISIONS, Choice, accelerators, choices, installed

log = logging.getLogger(__name__)

RUNTIMES = ("ort", "ov", "torch")
EXTRA = "it needs torch: pip install 'hope-inference[torch]'"


@dataclass(frozen=True)
class _Runtime:
    """What makes a runtime's processors, so that naming one does not start the others.

    Attributes:
        makers: by id, those that are offered.
        on_cores: what makes one on any set of cores; None for torch.
        plain: what makes the runtime as its own users run it.
    """

    makers: Mapping[str, Callable[[], Processor]]
    on_cores: Callable[[frozenset[int]], Processor] | None = None
    plain: Sequence[Callable[[], Processor]] = ()


def discover(
    spec: str | None = None,
    *,
    soc: Soc | None = None,
    cache: Path | None = None,
    frozen: FrozenGraphs | None = None,
    precision: str = "fp32",
) -> list[Processor]:
    """The processors to plan with.

    ``spec`` is a comma-separated list of ids or runtimes (``"ort@0-7,ort@8-15"``, ``"ort"``, ``"ort,ov@0+2"``), where
    any set of this process's cores may be named; without it every group of cores that is worth offering
    (``topology.core_groups``), for ONNX Runtime and, where the package is installed and works, OpenVINO, the
    accelerators either of them can drive, and the GPUs that torch drives, where that is installed. ``precision`` is
    what torch computes float32 in unless an id says it (``cuda:0/fp16``; ``mixed``: a processor for each
    precision); a part of a GPU is had by naming it (``cuda:0/8sm``), torch on the cores as ``cpu``. A runtime that
    ``spec`` does not name is left alone. ONNX Runtime's optimised graphs are kept in ``frozen``, else in the directory
    ``cache`` (by default in the user's cache directory).

    Raises UnknownNameError for an id or a runtime that this device does not have, listing what it has, or for a
    precision that is none; ProcessorLost where a named one does not start.
    """
    if precision not in (*PRECISIONS, MIXED):
        raise UnknownNameError("precision", precision, (*PRECISIONS, MIXED))
    soc = soc or read_soc()
    frozen = frozen or FrozenGraphs(cache if cache is not None else cache_directory() / "ort")
    if spec is None:
        return [
            processor
            for runtime in _runtimes(soc, frozen, precision=precision).values()
            for processor in _started(runtime.makers)
        ]
    names = [part.strip() for part in spec.split(",")]
    runtimes = _runtimes(soc, frozen, {re.split("[@-]", name)[0] for name in names}, precision)
    chosen: dict[str, Callable[[], Processor]] = {}
    free = _free(names, soc)
    for name in names:
        made = _named(name, runtimes, soc, precision, free)
        if not made:
            every = _runtimes(soc, frozen, precision=precision).values()
            raise UnknownNameError("processor", name, [own for runtime in every for own in runtime.makers])
        chosen |= made
    return [make() for make in chosen.values()]


def discover_plain(spec: str | None, soc: Soc, frozen: FrozenGraphs) -> list[Processor]:
    """The runtimes that ``spec`` names whole, as their own users run them: what no plan may be slower than."""
    wanted = RUNTIMES if spec is None else {part.strip() for part in spec.split(",")}
    return [make() for runtime in _runtimes(soc, frozen, wanted).values() for make in runtime.plain]


def _free(names: Iterable[str], soc: Soc) -> frozenset[int]:
    """Cores on which none of these processors computes; none where a whole runtime is among them, which takes all."""
    taken: set[int] = set()
    for name in names:
        runtime, _, cores = name.partition("@")
        if runtime in RUNTIMES:
            taken |= set(parse_cores(cores) if cores else soc.cores)
    return frozenset(soc.cores) - taken


def _named(
    name: str, runtimes: Mapping[str, _Runtime], soc: Soc, precision: str, free: frozenset[int]
) -> Mapping[str, Callable[[], Processor]]:
    """What makes the processors that a name means; nothing where this device has none of that name."""
    if chosen := choices(name, precision):
        if not installed():
            raise ProcessorLost(f"processor '{name}' cannot be used: {EXTRA}")
        return {choice.id: partial(_torch, soc, choice, free) for choice in chosen}
    runtime, _, cores = name.partition("@")
    if runtime in runtimes and not cores:
        return runtimes[runtime].makers
    group = parse_cores(cores)
    on_cores = runtimes[runtime].on_cores if runtime in runtimes else None
    if on_cores is not None and group and group <= set(soc.cores):
        return {_id(runtime, group): partial(on_cores, group)}
    every = ((found, make) for own in runtimes.values() for found, make in own.makers.items())
    return {found: make for found, make in every if name in (found, found.partition("@")[0])}


def _started(makers: Mapping[str, Callable[[], Processor]]) -> Iterator[Processor]:
    """What starts; the rest is left out, with a word in the log."""
    for name, make in makers.items():
        try:
            yield make()
        except ProcessorLost as error:
            log.warning("'%s' is left out: %s", name, error)


def _runtimes(
    soc: Soc, frozen: FrozenGraphs, wanted: Collection[str] = RUNTIMES, precision: str = "fp32"
) -> dict[str, _Runtime]:
    """The runtimes that are installed and start, by name."""
    found: dict[str, _Runtime] = {}
    if "ort" in wanted:
        make = partial(OrtProcessor, soc, frozen=frozen)
        found["ort"] = _on_cores("ort", make, soc, installed_providers(), tuple(plain_configurations(soc, frozen)))
    if "ov" in wanted and find_spec("openvino") is not None:
        try:
            found["ov"] = _openvino(soc, frozen)
        except (ImportError, OSError, RuntimeError) as error:
            log.warning("OpenVINO is installed, but does not start: %s", error)
    if "torch" in wanted and installed():
        try:
            found["torch"] = _Runtime({one.id: partial(_torch, soc, one) for one in accelerators(precision)})
        except (ImportError, OSError, RuntimeError) as error:
            log.warning("torch is installed, but does not start: %s", error)
    return found


def _openvino(soc: Soc, frozen: FrozenGraphs) -> _Runtime:
    # NOTE: imported late, because importing OpenVINO takes seconds and the package is optional.
    from agent_sdk.runtimes.openvino import processor as openvino

    make = partial(openvino.OpenVinoProcessor, soc, lights=frozen.lights)
    plain = partial(openvino.PlainOpenVino, soc, lights=frozen.lights)
    return _on_cores("ov", make, soc, openvino.accelerators(), (plain,))


def _on_cores(
    name: str,
    make: Callable[..., Processor],
    soc: Soc,
    devices: Iterable[str],
    plain: Sequence[Callable[[], Processor]],
) -> _Runtime:
    """A runtime on groups of cores, and on the devices that it drives."""
    groups = core_groups(soc.core_class, soc.sites)
    driven = [partial(make, frozenset(soc.cores), device) for device in devices]
    makers = {_id(name, group): partial(make, group) for group in groups} | {one().id: one for one in driven}
    return _Runtime(makers, make, plain)


def _id(runtime: str, group: frozenset[int]) -> str:
    return f"{runtime}@{name_cores(tuple(sorted(group)))}"


def _torch(soc: Soc, choice: Choice, free: frozenset[int] = frozenset()) -> Processor:
    try:
        # NOTE: imported late, because importing torch takes seconds and the package is optional.
        from agent_sdk.runtimes.torch.processor import TorchProcessor
    except (ImportError, OSError) as error:
        raise ProcessorLost(f"processor '{choice.id}' cannot be used: torch does not start: {error}") from error
    return TorchProcessor(soc, choice, free)
