"""Carries out a program: compile once, bind once, then run as often as asked.

A run costs per segment one bound call, one reading of the clock and one look at the device's arbiter; everything else
was decided before. The caller's own thread serves one lane (as HOPE's main thread serves the big core), bound to its
cores meanwhile, so that a program on one lane involves no other thread at all. With a watchdog the caller only watches.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from math import inf
from time import monotonic, perf_counter_ns

import numpy as np

from agent_sdk.cancel import NEVER, Cancel
from agent_sdk.closing import Closes
from agent_sdk.engine.arbiter import check_key
from agent_sdk.engine.compiled import Compiled
from agent_sdk.engine.device import JOIN_S, Device
from agent_sdk.engine.flight import Flight
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.lanes import FINISHED, NativeLoop, SequentialLoop, Start, failed
from agent_sdk.engine.memory import MemoryPlan
from agent_sdk.engine.ports import NEW, Outputs, Ports
from agent_sdk.engine.program import Program
from agent_sdk.engine.run import Run
from agent_sdk.engine.starts import starts_ns
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.turns import Turns
from agent_sdk.errors import (
    DeviceClosedError,
    ExecutionError,
    InputError,
    NotWantedError,
    ProcessorLost,
    RunTimeoutError,
    refuse_unless_seconds,
)
from agent_sdk.machine.cores import bound_to
from agent_sdk.runtimes.base import Executable

GRACE_S = 2.0
"""How long a run that its watchdog ended waits for the segments in flight before it leaves them behind."""

CLOSED = "the session is closed"

LONGEST_S = 1e6
"""Threads cannot wait much longer than that; nobody will notice."""

MOST_IN_FLIGHT = 64
"""Runs of one session that may be under way at once; each has buffers of its own."""


def refuse_unless_in_flight(count: int) -> None:
    """Raise InputError unless so many runs of a session may be under way at once."""
    if not 1 <= count <= MOST_IN_FLIGHT:
        raise InputError(f"in_flight is {count}; from 1 to {MOST_IN_FLIGHT} runs may be under way at once")


class Executor(Closes):
    """A program, compiled and ready on a device.

    ``run`` may be called from any number of threads: so many runs as there are flights are under way at once, the
    others follow in the order of their calls; the device's arbiter decides whose segments compute.

    Args:
        program: from ``build_program`` with this device's processors.
        device: where it runs; it closes the executor when it is closed.
        in_flight: runs under way at once, 1 to ``MOST_IN_FLIGHT``; each takes ``memory``.

    Raises:
        InputError: ``in_flight`` is out of bounds.
        ProcessorError: a processor refuses a segment; what was compiled before is freed.
        DeviceClosedError: the device is closed.
    """

    def __init__(self, program: Program, device: Device, in_flight: int = 1) -> None:
        refuse_unless_in_flight(in_flight)
        self.program = program
        self.device = device
        self._lock = threading.Lock()
        self._closed = False
        self._freed = False
        self._abandoned: Run | None = None
        self._ports = Ports(program.graph)
        # The caller serves the lane that starts first: the others are woken while it is at work.
        self._home = program.work[0].lane
        self._compiled = Compiled(program)
        try:
            flights = [Flight(self._compiled, device.arbiter, device.cores) for _ in range(in_flight)]
            device.register(self)
        except BaseException:
            self._compiled.close()
            raise
        self.memory: MemoryPlan = flights[0].memory
        """Which buffer holds which tensor, in each flight."""
        self.in_flight = in_flight
        """Runs that are under way at once at most."""
        self._closing = threading.Lock()
        self._turns = Turns(flights)

    @cached_property
    def starts_ns(self) -> tuple[np.ndarray, ...]:
        """Offsets by which a segment stands at the arbiter the later, the later the plan starts it."""
        return starts_ns(self.program)

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The compiled segments, by segment index: for measuring them alone and asking what they ran on."""
        return tuple(self._compiled.executables)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        into: Mapping[str, np.ndarray] = NEW,
        timeout_s: float | None = None,
        key: int | None = None,
        offsets: Sequence[np.ndarray] = (),
        cancel: Cancel = NEVER,
    ) -> tuple[Outputs, Trace]:
        """Compute the outputs.

        Args:
            inputs: an array for every graph input, of its exact shape and element type. Large ones are read in place:
                do not change them before the run is over.
            into: arrays of the caller's by output, to be written instead of new ones.
            timeout_s: watchdog; the whole run, waiting for others included, may take this many seconds. With it all
                lanes run on the device's threads, at the price of one hand-over.
            key: where its segments stand at the device's arbiter: the smallest goes first; None: the time of this
                call, nanoseconds of the monotonic clock.
            offsets: what each segment adds to that: per lane an array of int64, one for each piece of its work.
            cancel: ends the run at the next segment's border, once it is cancelled.

        Returns:
            Outputs by name, owned by the caller, and the record of the run.

        Raises:
            FeedError: the inputs, or an array in ``into``, do not fit; nothing has run.
            InputError: ``timeout_s`` is negative or no number, ``key`` no integer that the arbiter can hold.
            SegmentFailedError: a segment raised. Nothing of this run goes on; other runs are not touched.
            RunTimeoutError: the watchdog ended the run.
            NotWantedError: ``cancel`` ended it.
            DeviceClosedError: the executor or its device is closed, or a runtime hangs in an abandoned run.
            ProcessorLost: this process may start no thread for a lane; nothing has run.
            KeyboardInterrupt: passed on once the other threads have ended this run; a second one waits for nothing
                but the segment of this thread.
        """
        asked = perf_counter_ns()
        end = inf
        if timeout_s is not None:
            refuse_unless_seconds("timeout_s", timeout_s)
            end = monotonic() + min(timeout_s, LONGEST_S)
        if into:
            self._ports.check_outputs(into)
        feeds = self._ports.check(inputs)
        key = asked if key is None else check_key(key)
        with DeferredInterrupts() as interrupts:
            flight, queued_ns = self._take_flight(interrupts, end)
            alone = isinstance(flight.loop, SequentialLoop) or (end == inf and len(self.program.lanes) == 1)
            run = Run(flight, self._home if alone or end == inf else -1, interrupts)
            try:
                began = perf_counter_ns()
                flight.load(feeds)
                loaded = perf_counter_ns()
                start = Start(flight.first, key, offsets=offsets)
                launch = self._alone if alone else self._on_lanes
                if cancel is NEVER:
                    launch(run, start, end)
                else:
                    with cancel.calling(partial(run.fail, NotWantedError("the run was cancelled"))):
                        launch(run, start, end)
                computed = perf_counter_ns()
                outputs = flight.store(feeds, into)
                finished = perf_counter_ns()
                flight.first = False
                stamps, waited_ns, ordinary = flight.loop.stamps(), flight.loop.waited_ns, flight.ordinary
            finally:
                if not run.abandoned:
                    self._give(flight)
        return outputs, Trace(
            self.program,
            stamps,
            origin_ns=asked + queued_ns,
            queued_ns=queued_ns,
            waited_ns=waited_ns,
            load_ns=loaded - began,
            store_ns=finished - computed,
            finished_ns=finished,
            ordinary=ordinary,
        )

    def traced(self, inputs: Mapping[str, np.ndarray]) -> Trace:
        """The record of a run, whose outputs are let go of as a user does. Raises what ``run`` raises."""
        return self.run(inputs)[1]

    def _take_flight(self, interrupts: DeferredInterrupts, end: float) -> tuple[Flight, int]:
        """A flight that no run is in, and the nanoseconds that it took to get one."""
        self._refuse_when_unusable()
        flight = self._turns.take_now()
        if flight is not None and not self._closed:
            return flight, 0
        queueing = perf_counter_ns()
        try:
            if flight is None:
                flight = self._turns.take(interrupts, -1 if end == inf else max(end - monotonic(), 0.0))
            if flight is None:
                raise RunTimeoutError("earlier runs of this session took all of the time allowed")
        except BaseException:
            if self._closed:  # a flight may have come while we gave up, and have gone on
                self._free()
            raise
        if self._closed:
            self._give(flight)
            raise DeviceClosedError(CLOSED)
        return flight, perf_counter_ns() - queueing

    def _give(self, flight: Flight) -> None:
        """Let the next run have it, or free everything where ``close`` could not wait for this one."""
        self._turns.give(flight)
        if self._closed:
            self._free()

    def _free(self) -> bool:
        """Free executables and buffers unless a run is under way, which will do it; say whether that was done."""
        flights = self._turns.take_all()
        if flights and not self._freed:
            self._freed = True
            self._compiled.close()
            for flight in flights:
                flight.close()
        for flight in flights:
            self._turns.give(flight)
        return bool(flights)

    def _alone(self, run: Run, start: Start, end: float) -> None:
        """All lanes by the calling thread: the only one, or in sequence."""
        run.interrupts.tell(run.fail)
        if run.failures:  # pressed before: what begins now would not know
            raise run.failures[0]
        try:
            run.flight.loop.alone(start, interruptible=run.interrupts.cancels, end=end)
        except KeyboardInterrupt:  # it was stopped, by whomever
            if not run.failures:
                raise
        if run.failures:
            raise run.failures[0]

    def _on_lanes(self, run: Run, start: Start, end: float) -> None:
        """Each lane by a thread of its own, but the caller's."""
        loop = run.flight.loop
        assert isinstance(loop, NativeLoop)
        assert self.device.threads is not None
        others = [lane for lane in range(len(self.program.lanes)) if lane != run.home]
        threads = self.device.threads.take([self.program.lanes[lane] for lane in others])
        run.threads = dict(zip(others, threads, strict=True))
        aside = loop.begin(start)
        try:
            run.interrupts.tell(run.fail)
            loop.hand_out(run.threads)
            if run.home >= 0:
                seat = (self.device.cores,) if aside else self.program.seats[run.home]
                self._drive(run, loop, seat)
            run.interrupts.listen()
            if not loop.wait(-1.0 if end == inf else max(end - monotonic(), 0.0)):
                raise RunTimeoutError(f"the run took longer than allowed; {self._state(loop)}")
            run.interrupts.raising = False
            self.device.threads.give_back(run.threads.values())
            run.threads = {}
            if loop.stopped:  # by a failure, or a Ctrl-C of which Python has not told yet
                raise [*run.failures, *loop.failures(), KeyboardInterrupt()][0]
        except BaseException as error:
            run.interrupts.raising = False
            if run.threads:
                self._give_up(run, loop, error)
            raise

    def _drive(self, run: Run, loop: NativeLoop, cores: Sequence[frozenset[int]]) -> None:
        """Serve the caller's lane of a run, bound meanwhile to CPUs: those at its beginning, and those at its end.

        Failures stay in the run, that the CPUs are gone among them.
        """
        row = self.program.by_lane[run.home]
        try:
            with bound_to(*cores) as seat:
                loop.drive(run.home, interruptible=run.interrupts.cancels)
                if loop.done(run.home) < len(row):
                    seat.last = None
        except ProcessorLost as error:
            run.fail(failed(row[0], error))

    def _give_up(self, run: Run, loop: NativeLoop, error: BaseException) -> None:
        """Stop a run that cannot go on: let the segments in flight end, leave behind those that hang.

        A segment hangs when the watchdog has ended the run and the time of grace is over too, or when the caller
        presses Ctrl-C meanwhile. Raises KeyboardInterrupt if that is the first one.
        """
        earlier = [failure for failure in run.failures if failure is not error]
        impatient = isinstance(error, KeyboardInterrupt) and any(isinstance(e, KeyboardInterrupt) for e in earlier)
        run.fail(error)
        grace = GRACE_S if isinstance(error, RunTimeoutError) else 0.0 if impatient else -1.0
        pressed: BaseException | None = None
        try:
            run.interrupts.raising = True
            loop.wait(grace)
            run.interrupts.raising = False
        except BaseException as now:  # noqa: BLE001  Ctrl-C: those that have not ended by now are left behind
            run.interrupts.raising = False
            pressed = now
        self._leave_behind(run, loop)
        if pressed is not None and not isinstance(error, KeyboardInterrupt):
            raise pressed from error

    def _leave_behind(self, run: Run, loop: NativeLoop) -> None:
        """Wait no more for lanes that have not ended; their flight comes back when their runtimes do."""
        threads = self.device.threads
        assert threads is not None
        with self._lock:
            hanging = [lane for lane in sorted(run.threads) if loop.done(lane) < FINISHED]
            names = ", ".join(run.threads[lane].name for lane in hanging)
            why = f"a runtime still hangs on {names} in a run that was given up; {self._state(loop)}"
            self.device.arbiter.hanging = why
            for lane, thread in run.threads.items():
                thread.left = partial(self._came_back, run, lane)
                if loop.leave_behind(lane):
                    run.abandoned.add(lane)
                else:
                    del thread.left
            if run.abandoned:
                self._abandoned = run
                self._turns.withhold(why)
        loop.wait()
        threads.give_back(thread for lane, thread in run.threads.items() if lane not in run.abandoned)

    def _came_back(self, run: Run, lane: int) -> None:
        """On the thread of a lane that was left behind: the runtime came back after all; what it held is free again."""
        assert self.device.threads is not None
        self.device.threads.give_back([run.threads[lane]])
        with self._lock:
            run.abandoned.discard(lane)
            last = not run.abandoned and self._abandoned is run
        if last:
            self._abandoned = None
            self._turns.withhold("")
            self._give(run.flight)

    def _state(self, loop: NativeLoop) -> str:
        """What each lane is doing, for the watchdog's message."""
        parts = []
        for lane, row in enumerate(self.program.by_lane):
            done = loop.done(lane)
            if done < len(row):
                segment = row[done]
                parts.append(f"'{segment.processor}' is at segment {segment.index} (op '{segment.ops[0]}')")
        return "; ".join(parts) or "all segments are finished"

    def _refuse_when_unusable(self) -> None:
        if self.device.forked:
            self.device.refuse_when_forked()
        if self._closed:
            raise DeviceClosedError(CLOSED)

    def close(self) -> None:
        """Let runs in progress end, refuse new ones, free executables and buffers. Idempotent.

        Raises ExecutionError when a run takes too long, e.g. because a runtime hangs: it frees them when it ends.
        """
        if self.device.forked:
            return
        # NOTE: from here on whoever gives a flight back frees everything, also where this is interrupted.
        self._closed = True
        with DeferredInterrupts() as interrupts:
            self._wait_for_runs(interrupts, monotonic() + JOIN_S)
            if not self._free():
                state = "hangs" if self._abandoned else f"is still going on after {JOIN_S:g} s"
                self._turns.withhold(CLOSED)
                raise ExecutionError(f"a run of this session {state}; its memory is freed when it ends")

    def _wait_for_runs(self, interrupts: DeferredInterrupts, end: float) -> None:
        """Return when no run is under way, or none of them will end soon."""
        if not interrupts.wait(self._closing, max(end - monotonic(), 0.0)):  # two that close would wait for each other
            return
        flights: list[Flight] = []
        try:
            with suppress(DeviceClosedError):  # a runtime hangs
                while len(flights) < self.in_flight:
                    flight = self._turns.take(interrupts, max(end - monotonic(), 0.0))
                    if flight is None:
                        return
                    flights.append(flight)
        finally:
            self._closing.release()
            for flight in flights:
                self._turns.give(flight)
