"""What is done in a child process because it may end the process, and what is asked for and answered.

A network, a plan or an op that has never run here may make a runtime divide by zero or read where nothing is. So its
first run is here: ``agent_sdk.first.child`` is the process, ``Children`` starts it.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
import onnx
from pydantic import Field

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import said
from agent_sdk.files import replace_whole
from agent_sdk.forking import TemporaryFolder
from agent_sdk.machine.soc import read_soc
from agent_sdk.measure.profiler import profile
from agent_sdk.model import Model
from agent_sdk.model.feeds import draw
from agent_sdk.model.nodes import show
from agent_sdk.model.weights import GRAPH_FILE, LightModels
from agent_sdk.runtimes.base import Package, Processor
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.options import opened, options
from hope_schema import Missing, ModelGraph, Observations, Plan
from hope_schema.base import Contract, Label, Name

MODEL_FILE: Final = "model.json"
"""What a light model's folder holds beside its graph and weights, for a child to read."""
TAKEN_FILE: Final = "taken.npz"
INSIDE_FILE: Final = "inside.onnx"
RUN_S: Final = 60.0
"""The longest that one run of a plan may take."""


log = logging.getLogger(__name__)


class SavedFeed(Contract):
    """A feed in a file, its arrays in the order of ``names``."""

    names: tuple[Name, ...]
    path: str

    def read(self) -> dict[str, np.ndarray]:
        with np.load(self.path, allow_pickle=False) as file:
            return dict(zip(self.names, (file[f"arr_{index}"] for index in range(len(self.names))), strict=True))


class RunFile(Contract):
    """Have a package compile a file, and run it on feeds."""

    kind: Literal["file"] = "file"
    file: str
    runtime: Package
    target: str
    feeds: tuple[SavedFeed, ...] = ()


class RunPlan(Contract):
    """Carry out a plan of the model in a folder."""

    kind: Literal["plan"] = "plan"
    model: str
    plan: Plan
    feeds: tuple[SavedFeed, ...]


class Measure(Contract):
    """Measure what is missing of the model in a folder, where it is not at hand."""

    kind: Literal["measure"] = "measure"
    model: str = ""
    processors: tuple[Label, ...]
    missing: Missing
    soc: str
    frequency: str
    device_id: str
    budget_s: float


Request = Annotated[RunFile | RunPlan | Measure, Field(discriminator="kind")]


class Reply(Contract):
    """What came of it.

    Attributes:
        failure: what a runtime said that refused or failed; empty where all went well.
        cpu_s: CPU seconds of the child so far.
    """

    failure: str = ""
    observations: Observations | None = None
    cpu_s: float = 0.0


class Message(Contract):
    """What a child writes: the steps it begins, then its reply."""

    step: str = ""
    reply: Reply | None = None


class Setting(Contract):
    """What a child needs to have the same processors as its parent.

    Attributes:
        processors: as the agent was asked for.
        cores: CPUs that the agent may use.
        frozen: where ONNX Runtime's optimised graphs are kept.
    """

    processors: str | None
    precision: str
    cores: tuple[int, ...]
    frozen: str


@contextmanager
def saved(feeds: Sequence[Mapping[str, Any]]) -> Iterator[tuple[SavedFeed, ...]]:
    """Feeds in files, for as long as this is open. Raises OSError."""
    with TemporaryFolder("hope-feeds-") as folder:
        made = []
        for index, feed in enumerate(feeds):
            path = folder / f"{index}.npz"
            np.savez(path, *map(np.asarray, feed.values()))
            made.append(SavedFeed(names=tuple(feed), path=str(path)))
        yield tuple(made)


def write_model(model: Model, light: Model, folder: Path) -> None:
    """Put what a child needs of a model into the folder of its light form. Raises OSError."""
    path = folder / MODEL_FILE
    if not path.exists():
        np.savez(folder / TAKEN_FILE, *model.taken.values())
        told = _Told(
            graph=model.graph,
            name=model.name,
            nodes=dict(light.nodes),
            digest=model.content_digest,
            taken=SavedFeed(names=tuple(model.taken), path=str(folder / TAKEN_FILE)),
        )
        replace_whole(path, told.model_dump_json().encode())


class _Told(Contract):
    graph: ModelGraph
    name: str
    nodes: dict[str, tuple[int, ...]]
    digest: str
    taken: SavedFeed


class Bench:
    """Carries out requests one after the other."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._devices: dict[str | None, Device] = {}
        self._models: dict[str, Model] = {}
        self._loaded: tuple[object, Callable[[Mapping[str, np.ndarray]], object]] | None = None

    def run_file(self, request: RunFile, step: Callable[[str], None]) -> Reply:
        """Compile a file, unless it is the one before, and run it; says what the package refuses."""
        try:
            run = self._compiled(request)
            for feed in request.feeds:
                step(f"a run on {request.target}")
                run(feed.read())
        except Exception as error:  # noqa: BLE001  the packages raise their own unrelated classes
            return Reply(failure=said(error))
        return Reply()

    def answer(self, request: RunFile | RunPlan | Measure, step: Callable[[str], None]) -> Reply:
        """Do what is asked for. Raises whatever a runtime raises."""
        match request:
            case RunFile():
                return self.run_file(request, step)
            case RunPlan():
                model, device = self._model(request.model), self._device(request.plan.processors_used)
                program = build_program(request.plan, model, device.processors)
                with Executor(program, device) as executor:
                    for feed in request.feeds:
                        step("a run of the plan")
                        executor.run(feed.read(), timeout_s=RUN_S)
                return Reply()
            case Measure():
                return measure(request, self._model(request.model), self._device(request.processors).processors, step)

    @cached_property
    def _frozen(self) -> FrozenGraphs:
        return FrozenGraphs(Path(self._setting.frozen))

    @property
    def lights(self) -> LightModels:
        return self._frozen.lights

    def _device(self, names: Sequence[str]) -> Device:
        """A device with these processors; no others are started, but torch's, which depend on who is beside them."""
        setting = self._setting
        on_cores = all(name.startswith(("ort@", "ov@")) for name in names)
        wanted = ",".join(names) if on_cores else setting.processors
        if wanted not in self._devices:
            soc = read_soc(cores=frozenset(setting.cores))
            found = discover(wanted, soc=soc, frozen=self._frozen, precision=setting.precision)
            self._devices[wanted] = Device(found)
        return self._devices[wanted]

    def _model(self, folder: str) -> Model:
        """The model whose light form is in a folder; the latest is kept."""
        if folder not in self._models:
            path = Path(folder)
            told = _Told.model_validate_json((path / MODEL_FILE).read_bytes())
            graph = path / GRAPH_FILE
            light = Model(told.graph, onnx.load(graph, load_external_data=False), told.name, told.nodes, graph)
            model = Model(told.graph, onnx.load(graph), told.name, told.nodes, taken=told.taken.read())
            model = replace(model, taken={**model.taken, **_inside(model, light)})
            vars(model)["content_digest"] = told.digest
            self.lights.adopt(model, light, path)
            self._models = {folder: model}
        return self._models[folder]

    def _compiled(self, request: RunFile) -> Callable[[Mapping[str, np.ndarray]], object]:
        now = os.stat(request.file)  # by its path alone it is whatever stands there: a handle's number is used again
        key = (now.st_dev, now.st_ino, now.st_mtime_ns, request.file, request.runtime, request.target)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None
            self._loaded = key, _COMPILE[request.runtime](request.file, request.target)
        return self._loaded[1]


def measure(
    request: Measure, model: Model, processors: Mapping[str, Processor], step: Callable[[str], None] = lambda _: None
) -> Reply:
    """Measure what is missing of a model. Raises whatever a runtime raises, and what ``step`` raises."""
    found = profile(
        model,
        [processors[name] for name in request.processors],
        request.missing,
        soc=request.soc,
        frequency=request.frequency,
        device_id=request.device_id,
        budget_s=request.budget_s,
        progress=step,
    )
    return Reply(observations=found)


def _inside(model: Model, light: Model) -> dict[str, np.ndarray]:
    """The values of tensors inside a model that are no floats, on what it takes: some are sizes, or indices."""
    graph = model.graph
    names = [name for name, own in graph.tensor.items() if name in graph.producer and "float" not in own.dtype]
    if not names or light.path is None:
        return {}
    proto = onnx.ModelProto()
    proto.CopyFrom(light.proto)
    show(proto, names)
    file = light.path.with_name(INSIDE_FILE)
    file.write_bytes(proto.SerializeToString())
    try:
        session = opened(str(file), options(0, {}))
        return dict(zip(names, session.run(names, draw(model)), strict=True))
    except Exception as error:  # noqa: BLE001  the runtime's own unrelated classes
        log.info("what stands inside is drawn for each op alone: %s", error)
        return {}


def _onnxruntime(file: str, target: str) -> Callable[[Mapping[str, np.ndarray]], object]:
    session = opened(file, options(0, {}), target)
    return lambda feed: session.run(None, dict(feed))


def _openvino(file: str, target: str) -> Callable[[Mapping[str, np.ndarray]], object]:
    from agent_sdk.runtimes.openvino.package import ov

    compiled = ov.Core().compile_model(file, target, {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda feed: compiled(dict(feed))


_COMPILE: Final = {"onnxruntime": _onnxruntime, "openvino": _openvino}
