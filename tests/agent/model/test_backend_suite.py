"""The operator tests of the ``onnx`` package: whatever ONNX Runtime answers, ours answers the same.

They run as they are, with their inputs as constants, and with hard values in place of the drawn ones; in a child,
because hard values end a process that runs them. Where plain ONNX Runtime ends with them, nothing is compared.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.errors import HopeError, SegmentFailedError, UnplannableError, UnsupportedOp
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.rounding import FLOAT32, rounding
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Content, Model, read_model
from agent_sdk.model.bounds import ordinary
from agent_sdk.model.feeds import feeds_of
from agent_sdk.model.hard import choices
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.ort.whole import WholeOrt
from tests import CAMPAIGN
from tests.agent.onnx_cases import FLAG, Case, cases, over_constants

PARTS: Final = 4
"""The suite is run in so many parts."""
EVERY: Final = 1 if CAMPAIGN else 6
"""Tests of one operator in so many are run,"""
OTHERWISE: Final = 1 if CAMPAIGN else 6
"""and one in so many of these in other ways than as they are."""
PROCESSORS: Final = ("ort@0", "ov@0", "cpu")
"""One of each runtime; torch on the cores stands for torch."""
WAYS: Final = ("as they are", "constants", "hard", "hard constants")
ASKED: Final = (
    [(processor, way) for processor in PROCESSORS for way in WAYS]
    if CAMPAIGN
    else [*(("ort@0", way) for way in WAYS), ("ov@0", "as they are"), ("ov@0", "hard")]
)
"""On whom each way is run; torch's own table is compared in ``runtimes/torch/test_table.py`` all the same."""
PATIENCE_S: Final = 120.0
"""For the answer to one test."""
SEEDS: Final = 2 if CAMPAIGN else 1
"""So often hard values are drawn."""

Feed = dict[str, Any]


SPECIAL = (np.nan, np.inf, -np.inf)
"""Floats that are not finite."""


def shapes_of(given: Feed) -> dict[str, tuple[int, ...]]:
    """The shapes of arrays."""
    return {name: value.shape for name, value in given.items() if isinstance(value, np.ndarray)}


def hardened(case: Case, given: Feed, seed: int) -> Feed:
    """The same inputs with hard values in those that are data; what is a size, an index, a count stays."""
    try:
        model = read_model(case.model, shapes=shapes_of(given))
    except HopeError:
        return given
    feeds, found = feeds_of(model), dict(given)
    for place, name in enumerate(model.graph.inputs):
        value = np.asarray(given[name])
        if feeds.use(name, model.graph.tensor[name].type) is None and value.dtype.kind in "biuf":
            special = SPECIAL if seed % 2 and value.dtype.kind == "f" else ()
            hard = np.array([*choices(value.dtype), *special], value.dtype)
            found[name] = np.random.default_rng(100 * seed + place).choice(hard, value.shape)
    return found


def asked(case: Case, way: str, seed: int) -> tuple[onnx.ModelProto, Feed]:
    """A file and what it is fed, for one way of running a test."""
    names = (info.name for info in case.model.graph.input)
    given = dict(zip(names, case.data_sets[0][0], strict=False))
    if way.startswith("hard"):
        given = hardened(case, given, seed)
    if not way.endswith("constants"):
        return case.model, given
    proto = over_constants(case.model, given)
    left = {info.name for info in proto.graph.input}
    return proto, {name: value for name, value in given.items() if name in left} | {FLAG: np.array(True)}


def by_the_file(proto: onnx.ModelProto, feed: Feed) -> dict[str, Any] | None:
    """What ONNX Runtime answers; None where it refuses."""
    try:
        return Reference(Content(proto)).outputs(feed)
    except HopeError:
        return None


def by_us(proto: onnx.ModelProto, feed: Feed, device: Device) -> tuple[Mapping[str, Any], float]:
    """What a plan on one processor answers, and how far right answers may lie apart.

    The whole answers where no plan is made, where it fails, and what a runtime is not trusted with, as in a session.
    """
    whole = WholeOrt(proto.SerializeToString(), 1).run
    try:
        model: Model = read_model(proto, shapes=shapes_of(feed))
    except UnplannableError:
        return whole(feed), 0.0
    [processor] = device.processors.values()
    trusted = processor.trusted is not None
    if trusted and not model.guard.admits(feed):
        return whole(feed), 0.0
    plan = single_processor_plan(model.graph, processor.id, soc="here", frequency="now")
    own, found = {name: feed[name] for name in model.graph.inputs}, rounding(model.graph)
    try:
        with Executor(build_program(plan, model, device.processors), device) as executor:
            answer = executor.run(own)[0]
    except (SegmentFailedError, UnsupportedOp):
        return whole(feed), 0.0
    if trusted and not all(ordinary(value) for value in answer.values()):
        return whole(feed), 0.0
    return answer, found.tolerance if found.differs else FLOAT32


def types_of(answer: Mapping[str, Any]) -> dict[str, str]:
    """The element types of arrays."""
    return {name: str(value.dtype) for name, value in answer.items() if isinstance(value, np.ndarray)}


def judged(case: Case, way: str, seed: int, device: Device, tell: Callable[[str], object]) -> str:
    """What is wrong with our answer; "refused" where ONNX Runtime gives none, and nothing where all is well."""
    proto, feed = asked(case, way, seed)
    tell("the runtime")
    right = by_the_file(proto, feed)
    if right is None:
        return "refused"
    tell("ours")
    try:
        answer, tolerance = by_us(proto, feed, device)
    except Exception as error:  # noqa: BLE001  collected, so that one run tells all
        return f"{type(error).__name__}: {error}"
    if types_of(answer) != types_of(right):
        return f"of another type: {types_of(answer)}"
    error = relative_error(answer, right)
    if error <= tolerance:
        return ""
    drawn = relative_error(by_the_file(proto, feed) or {}, right) > 0  # another answer each time
    return "refused" if drawn else f"wrong by {error:.1e}, more than {tolerance:.1e}"


def serve(link: Connection, processor: str, cache: str) -> None:
    """The child: judges whatever it is asked for."""
    known = {case.name: case for case in cases(EVERY)}
    with Device(discover(processor, cache=Path(cache))) as device:
        while (request := link.recv()) is not None:
            name, way, seed = request
            try:
                found = judged(known[name], way, seed, device, lambda stage: link.send(("at", stage)))
            except Exception as error:  # noqa: BLE001  told, so that a dead child is one that a runtime ended
                found = f"cannot be judged: {type(error).__name__}: {error}"
            link.send(("found", found))


class Judge:
    """A child that judges, and another one when that has died."""

    def __init__(self, processor: str, cache: Path) -> None:
        self._processor, self._cache = processor, str(cache)
        self._process: Any = None

    def ask(self, name: str, way: str, seed: int) -> str:
        """What is wrong with one answer; "refused" where plain ONNX Runtime answers nothing, or ends the child."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._link, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs, self._processor, self._cache), daemon=True)
            self._process.start()
            theirs.close()
        self._link.send((name, way, seed))
        stage = "reading"
        try:
            while self._link.poll(PATIENCE_S):
                kind, text = self._link.recv()
                if kind == "found":
                    return str(text)
                stage = text
        except (EOFError, ConnectionError):
            pass
        self.close()
        return "refused" if stage == "the runtime" else f"{stage} ended the process"

    def close(self) -> None:
        """End the child."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Judge]]:
    """One by processor; each begins when it is first asked."""
    made = {name: Judge(name, tmp_path_factory.mktemp("cache")) for name in PROCESSORS}
    yield made
    for each in made.values():
        each.close()


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("processor", "way"), ASKED)
def test_what_onnx_runtime_answers_ours_answers(
    processor: str, way: str, part: int, judges: Mapping[str, Judge]
) -> None:
    """No operator, type, shape or value that the runtime takes is refused or computed otherwise."""
    own = cases(EVERY)[part::PARTS]
    if (processor, way) != ("ort@0", "as they are"):
        own = own[::OTHERWISE]
    found = {
        f"{case.name}, {seed}": judges[processor].ask(case.name, way, seed)
        for case in own
        for seed in range(SEEDS if way.startswith("hard") else 1)
    }
    wrong = [f"{name}: {what}" for name, what in found.items() if what not in ("", "refused")]
    assert not wrong, "\n".join(wrong)
    assert list(found.values()).count("refused") < len(found) / 2, "too few are answered for this to prove anything"
