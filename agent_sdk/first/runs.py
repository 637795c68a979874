"""First runs of a network, of a plan, of a drawn feed: in a child, and what became of them is remembered.

ONNX Runtime is asked for its first answer before: the application would have loaded its file with it in any case.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from agent_sdk.errors import ModelError, OutOfMemory, ProcessorLost
from agent_sdk.first.bench import Bench, Reply, RunFile, RunPlan, saved, write_model
from agent_sdk.first.children import Children, CrashedError, Steps
from agent_sdk.model import Content, Model
from agent_sdk.model.feeds import ATTEMPTS, Drawn, Feeds
from agent_sdk.model.weights import GRAPH_FILE, LightModels
from agent_sdk.records import Records
from agent_sdk.runtimes.base import PACKAGES, Compiler, Package, Processor
from hope_schema import HOST, Plan
from hope_schema.base import Contract
from hope_schema.hashing import digest

CORES: Final = "CPUExecutionProvider"
"""What ONNX Runtime calls the cores."""
MAX_KNOWN: Final = 1024
"""First runs that are remembered."""
FORMAT: Final = 2
"""Raise when what is tried, or drawn, changes."""

Crashed = Mapping[Compiler, str]
"""Whose first run of a network ended a child, and how."""


class _Ended(Contract):
    """How a child ended, in words; empty where it lived."""

    crash: str


class _Taken(Contract):
    """The first attempt at drawing that ONNX Runtime takes, if any, and whether it takes hard values as well."""

    attempt: int | None
    hard: bool = False


@dataclass(frozen=True)
class FirstRuns:
    """What became of first runs on one device.

    Attributes:
        folder: where that is kept; where it cannot be written, every start has first runs.
        processors: the device's, by id.
        lights: where models are written for a child to read.
    """

    folder: Path
    processors: Mapping[str, Processor]
    lights: LightModels
    children: Children

    def drawn(self, feeds: Feeds, content: Content, network: str) -> Drawn | None:
        """The drawn feeds that plain ONNX Runtime takes of a file; None where it refuses, or crashes at, every attempt.

        ``network`` is by what the network is known again, its shapes included. Raises ModelError where it has changed.
        """
        records = Records(self.folder / "drawn", _Taken, MAX_KNOWN)
        key = digest([FORMAT, ort.__version__, network])[:32]
        taken = records.get(key)
        if taken is None:
            with _on_disk(content) as path:
                taken, lasting = self._taken(feeds, path)
            if lasting:
                records.keep(key, taken)
        return None if taken.attempt is None else Drawn(feeds, taken.attempt, taken.hard)

    def _taken(self, feeds: Feeds, file: Path) -> tuple[_Taken, bool]:
        lasting = True
        for attempt in range(ATTEMPTS if feeds.demanding else 1):
            normal, hard = (feeds.feed(0, attempt, hard=hard) for hard in (False, True))
            took, again = self._takes(file, normal)
            lasting = lasting and again
            if took:
                return _Taken(attempt=attempt, hard=self._takes(file, hard)[0]), lasting
        return _Taken(attempt=None), lasting

    def _takes(self, file: Path, feed: Mapping[str, Any]) -> tuple[bool, bool]:
        """Whether plain ONNX Runtime runs a file on a feed, and whether it would say so again."""
        try:
            return not self._run_file(file, "onnxruntime", CORES, [feed], needed=True).failure, True
        except CrashedError as error:
            return False, error.lasting

    def at_model(self, model: Model, feeds: Sequence[Mapping[str, Any]]) -> Crashed:
        """Who crashes at a model that is compiled in pieces, or at a run of it on these feeds."""
        with suppress(OutOfMemory):  # told where the model is compiled
            file = self.lights.get(model)[1] / GRAPH_FILE
            return self._crashes(self._compilers(), model.graph.model_hash, file, feeds)
        return {}

    def refuse_unjudged(self, content: Content) -> None:
        """Raise ModelError where ONNX Runtime crashes at a file, which then nothing can judge, or it has changed."""
        whole = {own._replace(target=CORES) for own in self._compilers() if own.runtime == "onnxruntime"}
        with _on_disk(content) as path:
            crashed = self._crashes(whole, content.digest, path, ())
        if crashed:
            raise ModelError(f"nothing can judge an answer: {told(crashed)[0]}")

    def _compilers(self) -> set[Compiler]:
        return {own.compiler for own in self.processors.values() if own.compiler is not None}

    def _crashes(
        self, compilers: Iterable[Compiler], network: str, file: Path, feeds: Sequence[Mapping[str, Any]]
    ) -> dict[Compiler, str]:
        ends = {}
        for compiler in sorted(compilers):
            key = [*compiler, network, bool(feeds)]
            ends[compiler] = self._remembered(key, partial(self._run_file, file, *compiler[::2], feeds))
        return {compiler: end for compiler, end in ends.items() if end}

    def at_plan(self, model: Model, plan: Plan, feeds: Sequence[Mapping[str, Any]]) -> None:
        """Carry out a plan for the first time, where something is compiled for it. Raises ProcessorLost if it crashes.

        What else it fails with it fails with here as well.
        """
        used = [self.processors[name] for name in plan.processors_used]
        compilers = sorted({own.compiler for own in used if own.compiler})
        if not compilers or any(own.spec.host != HOST for own in used):  # a child is connected to no other host
            return

        def run() -> None:
            light, folder = self.lights.get(model)
            write_model(model, light, folder)
            with saved(feeds) as files:
                self.children.ask(RunPlan(model=str(folder), plan=plan, feeds=files))

        steps = [step.model_dump(mode="json", include={"ops", "part", "dtype", "processor"}) for step in plan.steps]
        cuts = [job.model_dump(mode="json", include={"cuts"}) for job in plan.jobs]
        crash = self._remembered([*map(list, compilers), model.graph.model_hash, steps, plan.order, cuts], run)
        if crash:
            raise ProcessorLost(f"its first run ended a child: {crash}")

    def _remembered(self, key: Sequence[object], run: Callable[[], object]) -> str:
        """How a child ended, now or when it was tried before; empty where it lived."""
        records = Records(self.folder, _Ended, MAX_KNOWN)
        name = digest([FORMAT, *key])[:32]
        ended = records.get(name)
        if ended is not None:
            return ended.crash
        try:
            run()
            crash, lasting = "", True
        except CrashedError as error:
            crash, lasting = error.how, error.lasting
        except (OSError, OutOfMemory):  # there is no room for files: it is met where it is run
            return ""
        if lasting:
            records.keep(name, _Ended(crash=crash))
        return crash

    def _run_file(
        self, file: Path, runtime: Package, target: str, feeds: Sequence[Mapping[str, Any]], *, needed: bool = False
    ) -> Reply:
        """Have a package run a file; where there are no children, only if the answer is ``needed``."""
        with saved(feeds) as files:
            request = RunFile(file=os.path.abspath(file), runtime=runtime, target=target, feeds=files)
            reply = self.children.ask(request)
            if reply is None and needed:
                with Steps(self.children.held) as steps:
                    reply = Bench(self.children.setting).run_file(request, steps.begin)
            return reply or Reply()


@contextmanager
def _on_disk(content: Content) -> Iterator[Path]:
    with content.opened() as given, tempfile.TemporaryDirectory() as folder:
        if isinstance(given.file, str):
            yield Path(given.file)
            return
        own = Path(folder) / f"network{content.suffix}"
        for file, data in ((own, given.file), *((own.parent / name, data) for name, data in given.beside.items())):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        yield own


def told(crashed: Crashed) -> list[str]:
    return [
        f"{PACKAGES[compiler.runtime]} is left out, because it crashes at this network: {how}"
        for compiler, how in crashed.items()
    ]
