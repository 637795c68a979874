"""Which cores and threads a processor takes."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.soc import Soc
from agent_sdk.runtimes.base import Processor, whole_network
from agent_sdk.runtimes.openvino.processor import OpenVinoProcessor
from agent_sdk.runtimes.ort.options import LEVELS
from agent_sdk.runtimes.ort.processor import OrtProcessor
from tests.agent.cores import SEVERAL
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
def test_a_gangs_workers_are_bound_to_the_other_cores(processors: list[Processor]) -> None:
    """The runtime counts cores from 1 and leaves out the caller: its worker must end up on the gang's second core."""
    gang = next(processor for processor in of(processors, "ort") if processor.spec.threads > 1)
    assert isinstance(gang, OrtProcessor)

    def masks() -> list[set[int]]:
        return [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]

    before = masks().count({gang.cores[1]})
    executable = gang.compile(whole_network(random_model(4)))
    end = time.monotonic() + 60
    while masks().count({gang.cores[1]}) == before and time.monotonic() < end:
        time.sleep(0.01)  # the worker binds itself once it runs
    assert masks().count({gang.cores[1]}) == before + 1
    executable.close()


def test_single_cores_start_no_threads() -> None:
    """One thread means the caller's: no worker that could spin beside it."""
    options = OrtProcessor(Soc("test", "test", {0: "core"}), frozenset({0})).options(LEVELS[0])
    assert options.intra_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize(
    ("runtime", "accelerator"),
    [("ort", "CUDAExecutionProvider"), ("ort", "DnnlExecutionProvider"), ("openvino", "GPU")],
)
def test_an_accelerator_does_not_compute_on_the_callers_thread(runtime: str, accelerator: str) -> None:
    """On a machine with one core too, the CPU time of its caller is not its latency; the core's own is."""
    maker = {"ort": OrtProcessor, "openvino": OpenVinoProcessor}[runtime]
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
