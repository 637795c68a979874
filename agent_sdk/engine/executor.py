"""Carries out a program: compile once, bind once, then run as often as asked.

A run costs per segment one bound call and one reading of the clock; everything else was decided before. The
caller's own thread serves one lane (as HOPE's main thread serves the big core), bound to its cores meanwhile, so
that a program on one lane involves no other thread at all. With a watchdog the caller only watches.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter_ns

import numpy as np

from agent_sdk.closing import Closes
from agent_sdk.device.cores import bound_to
from agent_sdk.engine.bound import NEW, BoundProgram, Feeds, Outputs
from agent_sdk.engine.device import JOIN_S, Device, Ticket
from agent_sdk.engine.errors import DeviceClosedError, RunTimeoutError
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.loops import Loop, failed
from agent_sdk.engine.memory import MemoryPlan
from agent_sdk.engine.program import Program
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.wait import FINISHED, Turn
from agent_sdk.errors import ExecutionError, refuse_unless_seconds
from agent_sdk.runtimes.base import Executable, ProcessorLost

GRACE_S = 2.0
"""How long a run that its watchdog ended waits for the segments in flight before it leaves them behind."""

CLOSED = "the session is closed"

LONGEST_S = 1e6
"""Threads cannot wait much longer than that; nobody will notice."""


class _Run:
    """What belongs to one run alone.

    Attributes:
        queued_ns: how long it stood behind other runs.
        home: the lane that the caller serves; -1 for none.
        go: released once the caller may serve it.
        ticket: its place in the device's queues.
        failures: what went wrong outside segments, first things first.
        abandoned: lanes left behind in a runtime that hangs; guarded by the executor's lock.
    """

    __slots__ = ("abandoned", "failures", "go", "home", "interrupts", "loop", "queued_ns", "ticket")

    ticket: Ticket

    def __init__(self, loop: Loop, home: int, interrupts: DeferredInterrupts) -> None:
        self.loop = loop
        self.home = home
        self.interrupts = interrupts
        self.queued_ns = 0
        self.failures: list[BaseException] = []
        self.go = threading.Lock()
        self.go.acquire()
        self.abandoned: set[int] = set()

    def fail(self, error: BaseException) -> None:
        """End it: every lane at its next segment."""
        self.failures.append(error)
        self.loop.stop()


class Executor(Closes):
    """A program, compiled and ready on a device.

    ``run`` may be called from any number of threads: runs of one executor follow one another in the order of their
    calls, because they share its buffers; runs of different executors overlap wherever their resources allow.

    Args:
        program: from ``build_program`` with this device's processors.
        device: where it runs; it closes the executor when it is closed.

    Raises:
        ProcessorError: a processor refuses a segment; what was compiled before is freed.
        DeviceClosedError: the device is closed.
    """

    def __init__(self, program: Program, device: Device) -> None:
        self.program = program
        self.device = device
        self._turn = Turn(device.lock)
        self._lock = threading.Lock()
        self._closed = False
        self._abandoned: _Run | None = None
        self._bound = BoundProgram(program, device.library)
        self._lanes = [device.queue(name) for name in program.lanes]
        self._first = True
        # The caller serves the lane that starts first: the others are woken while it is at work.
        self._home = program.work[0].lane
        # A program of one launch uses its ticket over and over: one run at a time has the turn.
        self._ticket = device.lasting_ticket(*program.lane_resources) if len(program.work) == 1 else None
        try:
            device.register(self)
        except BaseException:
            self._bound.close()
            raise

    @property
    def memory(self) -> MemoryPlan:
        """Which buffer holds which tensor."""
        return self._bound.memory

    @property
    def executables(self) -> tuple[Executable, ...]:
        """The compiled segments, by segment index: for measuring them alone and asking what they ran on."""
        return tuple(self._bound.executables)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        *,
        into: Mapping[str, np.ndarray] = NEW,
        timeout_s: float | None = None,
    ) -> tuple[Outputs, Trace]:
        """Compute the outputs.

        Args:
            inputs: an array for every graph input, of its exact shape and element type. Large ones are read in place:
                do not change them before the run is over.
            into: arrays of the caller's by output, to be written instead of new ones.
            timeout_s: watchdog; the whole run, waiting for others included, may take this many seconds. With it all
                lanes run on the device's threads, at the price of one hand-over.

        Returns:
            Outputs by name, owned by the caller, and the record of the run.

        Raises:
            FeedError: the inputs, or an array in ``into``, do not fit; nothing has run.
            InputError: ``timeout_s`` is negative or no number.
            SegmentFailedError: a segment raised. Nothing of this run goes on; other runs are not touched.
            RunTimeoutError: the watchdog ended the run.
            DeviceClosedError: the executor or its device is closed, or a runtime hangs in an abandoned run.
            ProcessorLost: this process may start no thread for a lane; nothing has run.
            KeyboardInterrupt: passed on once the other threads have ended this run; a second one waits for nothing
                but the segment of this thread.
        """
        asked = perf_counter_ns()
        if timeout_s is not None:
            refuse_unless_seconds("timeout_s", timeout_s)
            timeout_s = min(timeout_s, LONGEST_S)
        if into:
            self._bound.check_outputs(into)
        feeds = self._bound.check(inputs)
        with DeferredInterrupts() as interrupts:
            ticket = self._ticket
            if ticket is not None and timeout_s is None and self.device.enter_now(ticket, self._turn):
                return self._at_once(ticket, feeds, into, asked)
            self._refuse_when_unusable()
            end = None if timeout_s is None else monotonic() + timeout_s
            queued_ns = self._take_turn(interrupts, timeout_s)
            loop = self._bound.loop
            assert loop is not None
            run = _Run(loop, self._home if end is None else -1, interrupts)
            run.queued_ns = queued_ns
            try:
                loop.begin(first=self._first)
                interrupts.tell(run.fail)
                done = self._carried_out(run, feeds, into, end, asked)
                self._first = False
                return done
            finally:
                with self._lock:
                    hangs = bool(run.abandoned)
                    if hangs:
                        self._abandoned = run
                        self._turn.withhold(run.ticket.hangs)
                if not hangs:
                    self._end_turn()

    def traced(self, inputs: Mapping[str, np.ndarray]) -> Trace:
        """The record of a run, whose outputs are let go of as a user does. Raises what ``run`` raises."""
        return self.run(inputs)[1]

    def _at_once(
        self, ticket: Ticket, feeds: Feeds, into: Mapping[str, np.ndarray], asked: int
    ) -> tuple[Outputs, Trace]:
        """A run of one launch by this thread, which has the turn and the resources, and gives them back.

        So are most requests, and what they cost beside the runtime's own time is what a small network feels.
        """
        bound = self._bound
        try:
            if bound.loop is None:
                raise DeviceClosedError(CLOSED)
            began = perf_counter_ns()
            bound.load(feeds)
            loaded = perf_counter_ns()
            bound.loop.alone(first=self._first)
            self._first = False
            computed = perf_counter_ns()
            outputs = bound.store(feeds, into)
            finished = perf_counter_ns()
            stamps = bound.loop.stamps()
        finally:
            self.device.leave_now(ticket, self._turn)
            if self._closed:
                self._free()
        return outputs, Trace(self.program, stamps, asked, 0, loaded - began, finished - computed, finished)

    def _take_turn(self, interrupts: DeferredInterrupts, timeout_s: float | None = None) -> int:
        """Wait until the earlier runs have left the buffers; nanoseconds waited."""
        queueing = perf_counter_ns()
        got = False
        try:
            got = self._turn.acquire(interrupts, -1 if timeout_s is None else timeout_s)
        finally:
            if not got and self._closed:  # the turn may have come while we gave up, and have gone on
                self._free()
        if not got:
            raise RunTimeoutError(f"earlier runs of this session took all of the {timeout_s:g} s allowed")
        try:
            self._refuse_when_unusable()
        except DeviceClosedError:
            self._end_turn()
            raise
        return perf_counter_ns() - queueing

    def _end_turn(self) -> None:
        """Let the next run have the buffers, or free them where ``close`` could not wait for this one."""
        self._turn.release()
        if self._closed:
            self._free()

    def _free(self) -> bool:
        """Free executables and buffers unless somebody has the turn, who will do it; say whether that was done."""
        if not self._turn.acquire_now():
            return False
        self._bound.close()
        self._turn.release()
        return True

    def _carried_out(
        self, run: _Run, feeds: Feeds, into: Mapping[str, np.ndarray], end: float | None, asked: int
    ) -> tuple[Outputs, Trace]:
        program = self.program
        run.ticket = Ticket(program.lane_resources)
        run.ticket.start += [
            run.go.release if lane == run.home else partial(self._hand_out, run, [lane])
            for lane in range(len(self._lanes))
        ]
        run.ticket.refuse = partial(self._refused, run)
        began = perf_counter_ns()
        try:
            self._bound.load(feeds)
            loaded = perf_counter_ns()
            for lane, thread in enumerate(self._lanes):
                if lane != run.home:
                    thread.start()
            ready = self.device.enter(run.ticket)
            entered = perf_counter_ns()
            if others := [lane for lane in ready if lane != run.home]:
                self._hand_out(run, others)
            if run.home in ready:
                run.go.release()
            if run.home >= 0:
                run.interrupts.wait(run.go)
                self._drive(run, run.home)
            self._settle(run, end)
            self.device.leave(run.ticket, *range(len(self._lanes)))
            computed = perf_counter_ns()
            if run.loop.stopped:  # by a failure, or a Ctrl-C of which Python has not told yet
                raise [*run.failures, *run.loop.failures(), KeyboardInterrupt()][0]
            outputs = self._bound.store(feeds, into)
            finished = perf_counter_ns()
        except BaseException as error:
            run.interrupts.raising = False
            self._give_up(run, error)
            raise
        stamps = run.loop.stamps()
        if len(ready) < len(self._lanes):
            run.queued_ns += max(min(row[0] for row in stamps) - entered, 0)
        return outputs, Trace(
            program,
            stamps,
            origin_ns=asked + run.queued_ns,
            queued_ns=run.queued_ns,
            load_ns=loaded - began,
            store_ns=finished - computed,
            finished_ns=finished,
        )

    def _drive(self, run: _Run, lane: int) -> None:
        """Serve the caller's lane of a run, bound to its CPUs meanwhile, and give back what it occupied.

        Failures stay in the run, that the CPUs are gone among them.
        """
        row = self.program.by_lane[lane]
        try:
            with bound_to(*self.program.seats[lane]) as seat:
                run.loop.drive(lane, interruptible=run.interrupts.cancels)
                if run.loop.done(lane) < len(row):
                    seat.last = None
        except ProcessorLost as error:
            run.fail(failed(row[0], error))
        finally:
            # First what others may be waiting for: whoever sees the lane finished finds its resources free.
            self.device.leave(run.ticket, lane)
            run.loop.finish(lane)

    def _hand_out(self, run: _Run, lanes: Sequence[int]) -> None:
        """Have these lanes served by their own threads."""
        run.loop.hand_out({lane: self._lanes[lane] for lane in lanes}, partial(self._served, run))

    def _served(self, run: _Run, lane: int) -> None:
        """On a lane's own thread, which serves the run no more."""
        self.device.leave(run.ticket, lane)
        with self._lock:
            left_behind = lane in run.abandoned
            run.abandoned.discard(lane)
            last = left_behind and not run.abandoned and self._abandoned is run
        if last:
            # The runtime came back after all: what it held is free again.
            self._abandoned = None
            self._end_turn()

    def _refused(self, run: _Run, lanes: Sequence[int], why: str) -> None:
        """End the lanes that will never go, and the run with them."""
        run.fail(DeviceClosedError(why))
        for lane in lanes:
            if lane == run.home:
                run.go.release()
            else:
                run.loop.finish(lane)

    def _settle(self, run: _Run, end: float | None) -> None:
        """Wait until the others' lanes have ended. Raises RunTimeoutError when their time is over."""
        run.interrupts.listen()
        others = [lane for lane in range(len(self._lanes)) if lane != run.home]
        if others and not run.loop.wait(others, -1.0 if end is None else max(end - monotonic(), 0.0)):
            raise RunTimeoutError(f"the run took longer than allowed; {self._state(run)}")
        run.interrupts.raising = False

    def _give_up(self, run: _Run, error: BaseException) -> None:
        """Stop a run that cannot go on: let the segments in flight end, leave behind those that hang.

        A segment hangs when the watchdog has ended the run and the time of grace is over too, or when the caller
        presses Ctrl-C meanwhile. Raises KeyboardInterrupt if that is the first one.
        """
        earlier = [failure for failure in run.failures if failure is not error]
        impatient = isinstance(error, KeyboardInterrupt) and any(isinstance(e, KeyboardInterrupt) for e in earlier)
        run.fail(error)
        grace = GRACE_S if isinstance(error, RunTimeoutError) else 0.0 if impatient else -1.0
        started = [lane for lane in self.device.withdraw(run.ticket) if lane != run.home]
        pressed: BaseException | None = None
        try:
            run.interrupts.raising = True
            run.loop.wait(started, grace)
            run.interrupts.raising = False
        except BaseException as now:  # noqa: BLE001  Ctrl-C: those that have not ended by now are left behind
            run.interrupts.raising = False
            pressed = now
        with self._lock:
            run.abandoned = {lane for lane in started if run.loop.done(lane) < FINISHED}
            names = ", ".join(self._lanes[lane].name for lane in sorted(run.abandoned))
        self.device.leave(run.ticket, *(set(range(len(self._lanes))) - run.abandoned))
        if names:
            self.device.hang(
                run.ticket, f"a runtime still hangs on {names} in a run that was given up; {self._state(run)}"
            )
        if pressed is not None and not isinstance(error, KeyboardInterrupt):
            raise pressed from error

    def _state(self, run: _Run) -> str:
        """What each lane is doing, for the watchdog's message."""
        parts = []
        for lane, row in enumerate(self.program.by_lane):
            done = run.loop.done(lane)
            if done < len(row):
                segment = row[done]
                parts.append(f"'{segment.processor}' is at segment {segment.index} (op '{segment.ops[0]}')")
        return "; ".join(parts) or "all segments are finished"

    def _refuse_when_unusable(self) -> None:
        if self.device.forked:
            self.device.refuse_when_forked()
        if self._closed:
            raise DeviceClosedError(CLOSED)
        hanging = self._abandoned
        if hanging is not None:
            raise DeviceClosedError(hanging.ticket.hangs)

    def close(self) -> None:
        """Let runs in progress end, refuse new ones, free executables and buffers. Idempotent.

        Raises ExecutionError when a run takes too long, e.g. because a runtime hangs: it frees them when it ends.
        """
        if self.device.forked:
            return
        # NOTE: from here on whoever gives the turn back frees everything, also where this is interrupted.
        self._closed = True
        with DeferredInterrupts() as interrupts:
            got = False
            with suppress(DeviceClosedError):  # a runtime hangs
                got = self._turn.acquire(interrupts, JOIN_S)
            if got:
                self._bound.close()
                self._turn.release()
            elif not self._free():
                state = "hangs" if self._abandoned else f"is still going on after {JOIN_S:g} s"
                self._turn.withhold(CLOSED)
                raise ExecutionError(f"a run of this session {state}; its memory is freed when it ends")
