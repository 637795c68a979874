"""Calls of CUDA's driver, on a driver that stands in for it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from agent_sdk import native
from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.code import MEANWHILE, Instruction
from agent_sdk.engine.lanes import NativeLoop
from agent_sdk.engine.program import Copy, Move
from agent_sdk.errors import OutOfMemory, ProcessorLost, SegmentFailedError
from agent_sdk.runtimes.torch.clock import rouse
from agent_sdk.runtimes.torch.cuda import Cuda, CudaCalls
from agent_sdk.runtimes.torch.driver import SEGMENTS, CudaGraphs
from agent_sdk.runtimes.torch.hasten import hastened
from agent_sdk.runtimes.torch.memory import CopyQueue, DeviceTensor

CONTEXT, STREAM = 77, 5
MOVE = Move("x", "host", "cuda:0")
TEXTS = {2: b"out of memory", 700: b"an illegal memory access was encountered"}


class StandIn:
    """The driver's functions on host memory: copies are made when somebody asks for the third time."""

    def __init__(self, status: int = 0) -> None:
        self.said: list[str] = []
        self.failing, self.pending = "", None
        self.contexts: list[int] = []
        self.status, self.asked = status, 0
        self.then: dict[str, Callable[[], None]] = {}
        self.text = {code: ctypes.c_char_p(text) for code, text in TEXTS.items()}
        for name, count, does in (
            ("cuDeviceGet", 2, self.find),
            ("cuDevicePrimaryCtxRetain", 2, self.retain),
            ("cuCtxPushCurrent_v2", 1, self.push),
            ("cuCtxPopCurrent_v2", 1, self.pop),
            ("cuMemcpyHtoDAsync_v2", 4, self.copy),
            ("cuStreamQuery", 1, self.query),
            ("cuGetErrorString", 2, self.explain),
        ):
            function = ctypes.CFUNCTYPE(ctypes.c_int, *(ctypes.c_void_p,) * count)
            setattr(self, name, function(self._called(name, does)))

    def _called(self, name: str, does: Any) -> Any:
        def call(*arguments: int) -> int:
            self.said.append(name)
            if name in self.then:
                self.then[name]()
            if name == self.failing:
                return 700
            return does(*arguments) or 0

        return call

    def find(self, number: int, index: int) -> None:
        """Devices have their places as names."""
        ctypes.c_int.from_address(number).value = index or 0

    def retain(self, context: int, number: int) -> None:
        """The one context."""
        ctypes.c_void_p.from_address(context).value = CONTEXT

    def push(self, context: int) -> None:
        """What is current from now on."""
        self.contexts.append(context)

    def pop(self, popped: int) -> None:
        """What was current before."""
        ctypes.c_void_p.from_address(popped).value = self.contexts.pop()

    def copy(self, target: int, source: int, size: int, stream: int) -> int:
        """Begun, if all is well."""
        assert (self.contexts[-1:], stream) == ([CONTEXT], STREAM)
        self.pending = target, source, size
        return self.status

    def query(self, stream: int) -> int:
        """Done at every third question."""
        self.asked += 1
        if self.asked % 3 and self.pending:
            return 600
        if self.pending:
            ctypes.memmove(*self.pending)
        return 0

    def explain(self, status: int, text: int) -> None:
        """In words."""
        ctypes.c_char_p.from_address(text).value = self.text[status].value


def copying(driver: StandIn) -> tuple[CudaCalls, np.ndarray, np.ndarray]:
    """A copy by a driver, from where and to where."""
    source, target = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    copy = ("cuMemcpyHtoDAsync_v2", target.ctypes.data, source.ctypes.data, source.nbytes, STREAM)
    cuda = Cuda(torch.device("cuda:0"), driver)
    return CudaCalls(cuda, [copy, ("cuStreamQuery", STREAM)], "cuda:0, copying", (source, target)), source, target


def lane_of(calls: CudaCalls, meanwhile: Callable[[], None] | None = None) -> NativeLoop:
    """A lane that makes the calls, which copy a tensor."""
    library = native.library()
    assert library is not None
    work = Copy(lane=0, position=0, processor="cuda:0", finished=(0,), move=MOVE)
    return NativeLoop([[Instruction(work, call=calls, meanwhile=meanwhile)]], [frozenset()], Arbiter(library))


def walk(calls: CudaCalls, meanwhile: Callable[[], None] | None = None, occasions: int = 0) -> None:
    """Make the calls as a lane does. Raises what the lane fails with."""
    lane_of(calls, meanwhile).alone(0, occasions=occasions)


def test_answers_that_come_with_the_run_are_not_asked_for_again() -> None:
    """What makes a tensor brings it to the host; before it does, who wants it there copies it."""
    held, queue = DeviceTensor(torch.arange(4.0)), CopyQueue(torch.device("cpu"))
    queue.outwards = object()  # whoever used it would fail
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        queue.copy_out(held)
    target, source, size = held.brought()
    ctypes.memmove(target, source, size)
    assert queue.copy_out(held).tolist() == [0, 1, 2, 3]


class Hastening:
    """A driver whose stream is captured: the nodes that calls add, by what each stands behind."""

    def __init__(self, *, refusing: str = "") -> None:
        self.nodes: dict[int, list[int]] = {1: []}
        self.ends = [1]
        self.copies = {4}
        self.priority: dict[int, int] = {}
        self.refusing = refusing

    def do(self, name: str, *given: Any) -> None:
        """As ``Cuda.do``."""
        if name == self.refusing:
            raise ProcessorLost(f"{name} failed")
        getattr(self, name)(*given)

    def cuStreamGetCaptureInfo_v3(self, stream: Any, status: Any, number: Any, graph: Any, *rest: Any) -> None:  # noqa: N802
        """Behind what the next call will stand."""
        nodes, _, count = rest
        self.kept = (ctypes.c_void_p * len(self.ends))(*self.ends)
        status._obj.value, count._obj.value = 1, len(self.ends)
        ctypes.c_void_p.from_buffer(nodes._obj).value = ctypes.addressof(self.kept)

    def cuGraphNodeGetDependencies_v2(self, node: Any, nodes: Any, edges: Any, count: Any) -> None:  # noqa: N802
        """Behind what one stands."""
        found = self.nodes[node.value]
        count._obj.value = len(found)
        for place, one in enumerate(found if nodes is not None else ()):
            nodes[place] = one

    def cuGraphNodeGetType(self, node: Any, kind: Any) -> None:  # noqa: N802
        """Whether it is a kernel."""
        kind._obj.value = 1 if node.value in self.copies else 0

    def cuGraphKernelNodeSetAttribute(self, node: Any, attribute: int, value: Any) -> None:  # noqa: N802
        """Its priority."""
        assert attribute == 8
        self.priority[node.value] = ctypes.c_int.from_buffer(value).value

    def cuCtxGetStreamPriorityRange(self, least: Any, greatest: Any) -> None:  # noqa: N802
        """Four of them."""
        least._obj.value, greatest._obj.value = 0, -3


@pytest.mark.parametrize(("urgency", "priority"), [(1, -1), (5, -3)])
def test_the_kernels_of_a_call_get_its_priority(urgency: int, priority: int) -> None:
    """All that a call adds to a graph and nothing that was there, as high as the device goes; not a copy, no kernel."""
    cuda = Hastening()
    with hastened(cuda, STREAM, urgency):
        cuda.nodes |= {2: [1], 3: [2], 4: [3], 5: [4, 3]}
        cuda.ends = [5]
    assert cuda.priority == dict.fromkeys((2, 3, 5), priority)
    with hastened(cuda, STREAM, 2):
        cuda.nodes[6] = [5]
        cuda.ends = [6]
    assert cuda.priority == {**dict.fromkeys((2, 3, 5), priority), 6: -2}


@pytest.mark.parametrize("refusing", ["cuStreamGetCaptureInfo_v3", "cuGraphNodeGetDependencies_v2"])
def test_a_driver_that_knows_no_priorities_records_all_the_same(refusing: str) -> None:
    """A priority is worth some time, and no graph."""
    cuda = Hastening(refusing=refusing)
    with hastened(cuda, STREAM, 3):
        cuda.nodes[2] = [1]
        cuda.ends = [2]
    with pytest.raises(ZeroDivisionError), hastened(cuda, STREAM, 3):
        raise ZeroDivisionError


MAKE = pytest.mark.parametrize("make", [CudaCalls.__call__, walk], ids=["python", "native"])


@MAKE
@pytest.mark.parametrize("failing", ["cuCtxPushCurrent_v2", "cuMemcpyHtoDAsync_v2", "cuStreamQuery"])
def test_a_call_that_fails_leaves_no_context_behind(make: Callable[[CudaCalls], None], failing: str) -> None:
    """The thread's own context is current again, and a context is only taken away that was given."""
    driver = StandIn()
    driver.contexts.append(mine := 3)
    driver.failing = failing
    calls, *_ = copying(driver)
    with pytest.raises((SegmentFailedError, ProcessorLost), match=failing):
        make(calls)
    assert driver.contexts == [mine]


@MAKE
def test_calls_are_made_in_the_devices_context_and_waited_for(make: Callable[[CudaCalls], None]) -> None:
    """By Python as by lanes: what is not finished is asked again, and the thread's own context comes back."""
    driver = StandIn()
    calls, source, target = copying(driver)
    for _ in range(2):
        target[:] = 0
        driver.said.clear()
        make(calls)
        assert np.array_equal(source, target)
        assert driver.said == [
            "cuCtxPushCurrent_v2", "cuMemcpyHtoDAsync_v2", *["cuStreamQuery"] * 3, "cuCtxPopCurrent_v2"
        ]  # fmt: skip
        assert driver.contexts == []


@pytest.mark.parametrize("called", ["cuCtxPushCurrent_v2", "cuMemcpyHtoDAsync_v2", "cuStreamQuery"])
def test_a_run_that_is_stopped_waits_for_what_the_device_computes(called: str) -> None:
    """At whichever call it is stopped: the copy is made, and the thread's own context current, when the run ends."""
    driver = StandIn()
    calls, source, target = copying(driver)
    lane = lane_of(calls)
    driver.then[called] = lane.stop
    with pytest.raises(KeyboardInterrupt):
        lane.alone(0)
    assert np.array_equal(source, target)
    assert driver.contexts == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_does_something_else_while_the_device_computes(fails: bool) -> None:
    """Between the launch and the first look at its end, where asked; the end is waited for where that fails, too."""
    driver = StandIn()
    cuda, (source, target) = Cuda(torch.device("cuda:0"), driver), np.arange(12, dtype=np.float32).reshape(2, 6)
    copy = ("cuMemcpyHtoDAsync_v2", target.ctypes.data, source.ctypes.data, source.nbytes, STREAM)
    calls = CudaCalls(cuda, [copy, ("cuStreamQuery", STREAM)], "cuda:0", (source, target), launches=1)

    def meanwhile() -> None:
        driver.said.append("meanwhile")
        if fails:
            raise ValueError

    launch, end = ["cuCtxPushCurrent_v2", "cuMemcpyHtoDAsync_v2"], [*["cuStreamQuery"] * 3, "cuCtxPopCurrent_v2"]
    driver.said.clear()
    walk(calls, meanwhile)
    assert driver.said == [*launch, *end]
    target[:], driver.said[:] = 0, []
    with pytest.raises(SegmentFailedError) if fails else nullcontext():
        walk(calls, meanwhile, MEANWHILE)
    assert driver.said == [*launch, "meanwhile", *end]
    assert np.array_equal(source, target)
    assert driver.contexts == []


@pytest.mark.parametrize(("status", "meaning"), [(2, OutOfMemory), (700, ProcessorLost)])
def test_a_call_that_fails_says_which_and_why(status: int, meaning: type[Exception]) -> None:
    """The driver's own words, and what they mean to a session."""
    calls, *_ = copying(StandIn(status))
    with pytest.raises(meaning, match=r"cuda:0, copying: cuMemcpyHtoDAsync_v2 failed: .* \(\d+\)"):
        calls()


def test_a_driver_that_lacks_a_function_is_too_old() -> None:
    """It says which, before anything runs."""
    driver = StandIn()
    with pytest.raises(ProcessorLost, match="has no cuGraphLaunch"):
        CudaCalls(Cuda(torch.device("cuda:0"), driver), [("cuGraphLaunch", 1, 2)], "cuda:0")


class Capturing:
    """What a capture asks torch for: streams that take part once they have waited for one that does.

    Attributes:
        invalid: whether CUDA has given up the capture.
        pools: what torch's allocator fills, until a capture ends or it is told to stop.
        released: pools that it was told to forget.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.part, self.joined, self.ended = [0], set(), {0}, None
        self.invalid, self.pools, self.released = False, list[object](), list[object]()
        for name, value in {
            "Event": lambda **_: None, "CUDAGraph": lambda: self, "device": nullcontext, "synchronize": lambda _: None,
            "stream": self.on, "is_current_stream_capturing": lambda: self.current[-1] in self.part,
            "graph_pool_handle": lambda: (0, 7), "current_device": lambda: 0,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        for name, value in {
            "_cuda_clearCublasWorkspaces": lambda: None,
            "_cuda_endAllocateToPool": lambda _, pool: self.pools.remove(pool),
            "_cuda_releasePool": lambda _, pool: self.released.append(pool),
        }.items():
            monkeypatch.setattr(torch._C, name, value, raising=False)
        monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.empty(1))

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """A stream is the current one for a while."""
        self.current.append(stream.number)
        yield
        self.current.pop()

    def capture_begin(self, pool: object = None, **_: Any) -> None:
        """The current stream takes part; memory comes from a pool."""
        self.part, self.joined = {self.current[-1]}, {self.current[-1]}
        self.pools.append(pool)

    def capture_end(self) -> None:
        """Fails, as CUDA does, once it is invalid, and while a stream that takes part was not joined."""
        self.ended = not self.invalid
        if self.invalid:
            self.invalid = False
            raise RuntimeError("operation failed due to a previous error during capture")
        self.pools.pop()
        self.ended = self.part == self.joined
        if not self.ended:
            raise RuntimeError("capture has unjoined streams")


class Stream:
    """One of a capture's, by its number."""

    def __init__(self, number: int, capture: Capturing) -> None:
        self.number, self.capture = number, capture

    def record_event(self) -> int:
        """An event is the stream that it was recorded on."""
        return self.number

    def wait_event(self, event: int) -> None:
        """Whoever waits for a stream that takes part does so too."""
        self.capture.part |= {self.number} if event in self.capture.part else set()

    def wait_stream(self, other: Stream) -> None:
        """Joins one that takes part; any other makes a capture invalid."""
        assert other.number in self.capture.part
        self.capture.joined.add(other.number)


@pytest.mark.parametrize("forked", [False, True])
def test_a_capture_that_fails_ends_well(monkeypatch: pytest.MonkeyPatch, forked: bool) -> None:
    """Where memory runs out between fork and join, too: torch's allocator would else never leave it."""
    capture = Capturing(monkeypatch)
    numbers = iter(range(9))
    driver = CudaGraphs(torch.device("cuda:0"), lambda: Stream(next(numbers), capture))
    driver.stream(3)  # one more than are wanted here

    def fail() -> None:
        with driver.recording(3):
            if forked:
                driver.fork(3)
            raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(torch.OutOfMemoryError):
        fail()
    assert capture.part == ({0, 1, 2} if forked else {0})
    assert capture.ended


@pytest.mark.parametrize("raised", [False, True])
def test_an_invalid_capture_leaves_the_allocator_as_it_was(monkeypatch: pytest.MonkeyPatch, raised: bool) -> None:
    """Nothing goes to its pool any more, torch forgets that pool, and its latest capture is one that ended well."""
    capture = Capturing(monkeypatch)
    driver = CudaGraphs(torch.device("cuda:0"), lambda: Stream(0, capture))

    def fail() -> None:
        with driver.recording(1):
            capture.invalid = True
            if raised:
                raise ValueError("what made it invalid")

    with pytest.raises(ValueError if raised else RuntimeError, match="invalid" if raised else "previous error"):
        fail()
    assert capture.pools == []
    assert capture.released == [(0, 7)]
    assert capture.ended


def test_a_device_is_kept_at_work_until_its_clock_is_up() -> None:
    """What is timed afterwards is timed at full clock, however slowly that comes; a device that never settles ends."""
    now = 0.0

    def work(speed: float) -> float:
        nonlocal now
        took = 0.05 / speed
        now += took
        return took

    assert rouse(lambda: work(min(1.0, 0.2 + now)), lambda: now) == pytest.approx(0.05)
    began = now
    assert rouse(lambda: work(1.0 + now), lambda: now) < 0.05
    assert now - began < 5.0


def test_recordings_have_streams_of_their_own() -> None:
    """As long as they live; then others launch there."""
    numbers = iter(range(9))
    driver = CudaGraphs(torch.device("cuda:0"), lambda: next(numbers))  # type: ignore[return-value]
    first, second = torch.ones(1), torch.ones(1)
    assert [driver.lend(first), driver.lend(second)] == [0, 1]
    del first
    assert driver.lend(second) == 0


def test_nobody_waits_for_the_copies_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread waits for its copy to the host, another asks for its own, and has it."""
    queue, found = CopyQueue(torch.device("cpu")), list[list[float]]()

    class Stream:
        """One whose copies take as long as another thread takes to have one."""

        def record_event(self) -> Stream:
            return self

        def synchronize(self) -> None:
            if threading.current_thread() is threading.main_thread():
                other = threading.Thread(target=ask, args=([2.0],), daemon=True)
                other.start()
                other.join(10)

    def ask(values: list[float]) -> None:
        found.append(queue.copy_out(DeviceTensor(torch.tensor(values))).tolist())

    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    queue.outwards = Stream()  # type: ignore[assignment]
    ask([1.0])
    assert found == [[2.0], [1.0]]


@pytest.mark.parametrize("own", ["", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_small_segments_unless_told_otherwise(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's allocator takes small segments for streams of graphs, unless the process has told it something itself."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(own, "large_segment_size_mb:40")
    told: list[str] = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    CudaGraphs(torch.device("cuda:0"))
    assert told == ([] if own else [SEGMENTS])


def test_the_allocator_takes_such_segments() -> None:
    """Torch accepts the size of segments that it is told."""
    torch._C._accelerator_setAllocatorSettings(SEGMENTS)
