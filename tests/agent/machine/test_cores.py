"""Which cores and threads a processor takes."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_sdk.engine import build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.soc import Soc
from agent_sdk.model.united import united
from agent_sdk.runtimes.base import Processor, segment_of, whole_network
from agent_sdk.runtimes.openvino.processor import OpenVinoProcessor
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.options import LEVELS
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import SuperOp, merge
from tests.agent.cores import GONE, SEVERAL
from tests.agent.runtimes.networks import RUNTIMES, of, random_model


def test_equal_cores_are_one_kind(processors: list[Processor]) -> None:
    """Two equal cores share their kind, a gang does not, and resources say who excludes whom."""
    for runtime in RUNTIMES:
        own = of(processors, runtime)
        singles = [processor for processor in own if processor.spec.threads == 1]
        gangs: list[Any] = [processor for processor in own if processor.spec.threads > 1]
        assert len({processor.spec.kind for processor in singles}) <= len({p.spec.core_class for p in singles})
        for gang in gangs:
            assert gang.spec.kind not in {processor.spec.kind for processor in singles}
            assert set(gang.spec.resources) == {f"cpu{core}" for core in gang.caller_cores | set(gang.cores)}


@SEVERAL
@pytest.mark.parametrize("what", ["segment", "whole", "one of two"])
@pytest.mark.parametrize("others", [False, True], ids=["all cores", "some"])
def test_where_a_gangs_worker_is_bound(what: str, others: bool, tmp_path: Path) -> None:
    """To the gang's second core; where a gang leaves cores to others, a whole network's worker to all of its own."""
    gang, cores = gang_of_two(tmp_path, others=others)
    model, two = random_model(4), united([random_model(4), random_model(5)])
    segment = {
        "segment": segment_of(merge(model.graph)[0], model),
        "whole": whole_network(model),
        "one of two": segment_of(
            SuperOp(two.graph, tuple(op for op in two.graph.ops if not two.member(op.id)[0])), two
        ),
    }[what]

    before = set(os.listdir("/proc/self/task"))
    executable = gang.compile(segment)

    def workers() -> list[set[int]]:
        return [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task") if task not in before]

    expected, end = [cores if what == "whole" and others else {gang.cores[1]}], time.monotonic() + 60
    while workers() != expected and time.monotonic() < end:
        time.sleep(0.01)  # the worker binds itself once it runs
    assert workers() == expected
    executable.close()


@SEVERAL
def test_where_a_gangs_caller_is_bound(tmp_path: Path) -> None:
    """To the first core, off the workers; with a whole network in one segment where they are, if those may move."""
    for others in (False, True):
        gang, cores = gang_of_two(tmp_path, others=others)
        graph = (model := random_model(4)).graph
        plan = single_processor_plan(graph, gang.id, soc="test", frequency="test")
        cut = build_program(plan, model, {gang.id: gang}, [1])
        assert len(cut.segments) > 1
        assert cut.seats == ({gang.cores[0]},)
        assert build_program(plan, model, {gang.id: gang}).seats == (cores if others else {gang.cores[0]},)


def gang_of_two(folder: Path, *, others: bool) -> tuple[OrtProcessor, set[int]]:
    """A gang of this process's first two cores, and these; whether there are ``others``."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    every = [*cores, GONE] if others else cores
    soc = Soc("test", "test", dict.fromkeys(every, "core"))
    return OrtProcessor(soc, frozenset(cores), frozen=FrozenGraphs(folder)), set(cores)


def test_single_cores_start_no_threads(tmp_path: Path) -> None:
    """One thread means the caller's: no worker that could spin beside it."""
    frozen = FrozenGraphs(tmp_path)
    options = OrtProcessor(Soc("test", "test", {0: "core"}), frozenset({0}), frozen=frozen).options(LEVELS[0])
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("runtime", "accelerator"),
    [("ort", "CUDAExecutionProvider"), ("ort", "DnnlExecutionProvider"), ("openvino", "GPU")],
)
def test_an_accelerator_does_not_compute_on_the_callers_thread(runtime: str, accelerator: str, tmp_path: Path) -> None:
    """On a machine with one core too, the CPU time of its caller is not its latency; the core's own is."""
    frozen = FrozenGraphs(tmp_path)
    maker = {
        "ort": partial(OrtProcessor, frozen=frozen),
        "openvino": partial(OpenVinoProcessor, lights=frozen.lights),
    }[runtime]
    soc = Soc("test", "test", {0: "core"})
    assert maker(soc, frozenset({0})).on_caller_thread
    assert not maker(soc, frozenset({0}), accelerator).on_caller_thread


def test_binding_a_thread_is_undone() -> None:
    """A thread's mask is what it was before, also after an error."""
    before = os.sched_getaffinity(0)
    seen = []

    def fail() -> None:
        with bound_to(frozenset({min(before)})):
            seen.append(os.sched_getaffinity(0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [{min(before)}]
    assert os.sched_getaffinity(0) == before
