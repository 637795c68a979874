"""Carries out a program: compile once, bind once, then run as often as asked.

A run costs per segment one bound call, one reading of the clock and one look at the device's arbiter; everything else
was decided before. The caller's own thread serves one lane (as HOPE's main thread serves the big core), bound to its
cores meanwhile, so that a program on one lane involves no other thread at all. With a watchdog the caller only watches.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np

from agent_sdk.cancel import NEVER
from agent_sdk.closing import Closes
from agent_sdk.engine.arbiter import Hold
from agent_sdk.engine.compiled import Compiled
from agent_sdk.engine.device import JOIN_S, Device
from agent_sdk.engine.flight import Flight
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.lanes import NativeLoop
from agent_sdk.engine.memory import MemoryPlan
from agent_sdk.engine.ports import NEW, Outputs, check_feed, check_output, ports
from agent_sdk.engine.program import Program
from agent_sdk.engine.run import LanesRun
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.turn import NOW, Turn
from agent_sdk.engine.turns import Turns
from agent_sdk.errors import (
    SESSION_CLOSED,
    DeviceClosedError,
    ExecutionError,
    FeedError,
    InputError,
    NotWantedError,
    RunTimeoutError,
    refuse_unless_seconds,
)
from agent_sdk.runtimes.base import Executable

LONGEST_S = 1e6
"""Threads cannot wait much longer than that; nobody will notice."""

MOST_IN_FLIGHT = 64
"""Runs of one session that may be under way at once; each has buffers of its own."""


def refuse_unless_in_flight(count: int) -> None:
    """Raise InputError unless so many runs of a session may be under way at once."""
    if not (isinstance(count, int) and 1 <= count <= MOST_IN_FLIGHT):
        raise InputError(
            f"in_flight is {count!r}; from 1 to {MOST_IN_FLIGHT} runs may be under way at once, "
            "each in buffers of its own"
        )


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
        self._closed = False
        self._freed = False
        self._wanted = ports({name: program.graph.tensor[name].type for name in program.graph.inputs})
        self._made = ports({name: one.type for name, one in program.model.outputs.items()})
        # The caller serves the lane that starts first: the others are woken while it is at work.
        self._home = program.work[0].lane
        self._divided = device.arbiter.mask(program.divided)
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
        turn: Turn = NOW,
    ) -> tuple[Outputs, Trace]:
        """Compute the outputs.

        Args:
            inputs: an array, or a tensor of torch's, for every graph input, of its exact shape and element type. Large
                ones are read in place: do not change them before the run is over.
            into: arrays of the caller's by output, to be written instead of new ones.
            timeout_s: watchdog; the whole run, waiting for others included, may take this many seconds. With it all
                lanes run on the device's threads, at the price of one hand-over.
            turn: where it stands at the device's arbiter, and who may end it.

        Returns:
            Outputs by name, owned by the caller, and the record of the run.

        Raises:
            FeedError: the inputs, or an array in ``into``, do not fit; nothing has run.
            InputError: ``timeout_s`` is negative or no number.
            SegmentFailedError: a segment raised. Nothing of this run goes on; other runs are not touched.
            RunTimeoutError: the watchdog ended the run.
            NotWantedError: ``turn.cancel`` ended it.
            DeviceClosedError: the executor or its device is closed, or a runtime hangs in an abandoned run.
            ProcessorLost: this process may start no thread for a lane; nothing has run.
            KeyboardInterrupt: passed on once the other threads have ended this run; a second one waits for nothing
                but the segment of this thread.
        """
        asked = perf_counter_ns()
        end = inf
        if timeout_s is not None:
            refuse_unless_seconds("timeout_s", timeout_s)
            end = monotonic() + float(min(timeout_s, LONGEST_S))
        if into:
            self._check_outputs(into)
        feeds = check_feed(self._wanted, inputs)
        key = asked if turn.key is None else turn.key
        offsets = self.program.starts_ns if turn.by_start else ()
        with DeferredInterrupts() as interrupts:
            flight, queued_ns = self._take_flight(interrupts, end)
            mine = [flight]
            try:
                began = perf_counter_ns()
                flight.load(feeds, turn.meanwhile)
                loaded, beside = perf_counter_ns(), self.device.arbiter.taken(self._divided)
                if turn.cancel is NEVER:
                    self._launch(mine, interrupts, key, offsets, end, turn.hold)
                else:
                    # A cancel that comes late must not end the run that has the flight by then.
                    unwanted = NotWantedError("the run was cancelled")
                    with turn.cancel.calling(partial(flight.fail, unwanted, of=flight.failures)):
                        self._launch(mine, interrupts, key, offsets, end, turn.hold)
                computed, beside = perf_counter_ns(), beside or self.device.arbiter.taken(self._divided)
                outputs = flight.store(feeds, into)
                finished = perf_counter_ns()
                origin, stamps, ordinary = asked + queued_ns, flight.loop.stamps(), flight.ordinary
                elsewhere = flight.computed_elsewhere()
            finally:
                interrupts.tell(None)
                if mine:
                    self._give(flight)
        load_us, store_us, total_us = (loaded - began) / 1e3, (finished - computed) / 1e3, (finished - origin) / 1e3
        return outputs, Trace(self.program, stamps, origin, load_us, store_us, total_us, ordinary, beside, elsewhere)

    def takes(self, feed: Mapping[str, Any]) -> bool:
        """Whether a feed is what it was compiled for: names, shapes, types, and whole numbers within their bounds."""
        try:
            check_feed(self._wanted, feed)
        except FeedError:
            return False
        return not self.program.trusting or self.program.model.guard.bounds(feed)

    def traced(self, inputs: Mapping[str, np.ndarray]) -> Trace:
        """The record of a run, whose outputs are let go of as a user does. Raises what ``run`` raises."""
        return self.run(inputs)[1]

    def _check_outputs(self, into: Mapping[str, np.ndarray]) -> None:
        """Raise FeedError where an output cannot be written into the array that is given for it."""
        for name, array in into.items():
            if name not in self._made:
                raise FeedError(f"the model has no output '{name}'; it has {', '.join(self._made)}")
            check_output(name, *self._made[name], array)

    def _take_flight(self, interrupts: DeferredInterrupts, end: float) -> tuple[Flight, int]:
        """A flight that no run is in, and the nanoseconds that it took to get one."""
        self.device.refuse_when_forked()
        if self._closed:
            raise DeviceClosedError(SESSION_CLOSED)
        queueing = perf_counter_ns()
        try:
            flight = self._turns.take(interrupts, -1 if end == inf else max(end - monotonic(), 0.0))
            if flight is None:
                raise RunTimeoutError("earlier runs of this session took all of the time allowed")
        except BaseException:
            if self._closed:  # a flight may have come while we gave up, and have gone on
                self._free()
            raise
        if self._closed:
            self._give(flight)
            raise DeviceClosedError(SESSION_CLOSED)
        return flight, perf_counter_ns() - queueing

    def _give(self, flight: Flight) -> None:
        """Let the next run have it, or free everything where ``close`` could not wait for this one."""
        flight.over()
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

    def _launch(
        self,
        mine: list[Flight],
        interrupts: DeferredInterrupts,
        key: int,
        offsets: Sequence[np.ndarray],
        end: float,
        hold: Hold | None,
    ) -> None:
        """All lanes: by the calling thread where there is one, or they go in sequence; else each by its own.

        Takes the flight out of ``mine`` where it belongs to a runtime that hangs, until that comes back.
        """
        flight, loop = mine[0], mine[0].loop
        if isinstance(loop, NativeLoop) and (end < inf or len(self.program.lanes) > 1):
            if hold is not None:
                hold.give_back()
            home = self._home if end == inf else -1
            LanesRun(
                flight, self.device, home, interrupts, partial(self._hangs, mine), partial(self._is_back, flight)
            ).walk(key, offsets, end)
            return
        interrupts.tell(flight.fail)
        if flight.failures:  # pressed before: what begins now would not know
            raise flight.failures[0]
        try:
            if isinstance(loop, NativeLoop):
                loop.alone(key, offsets, occasions=flight.occasions, interruptible=interrupts.cancels, hold=hold)
            else:
                loop.alone(key, end=end)
        except KeyboardInterrupt:  # it was stopped, by whomever
            if not flight.failures:
                raise
        if flight.failures:
            raise flight.failures[0]

    def _hangs(self, mine: list[Flight], why: str) -> None:
        mine.clear()
        self._turns.withhold(why)

    def _is_back(self, flight: Flight) -> None:
        self._turns.withhold("")
        self._give(flight)

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
                hangs = self._turns.withheld not in ("", SESSION_CLOSED)
                state = "hangs" if hangs else f"is still going on after {JOIN_S:g} s"
                self._turns.withhold(SESSION_CLOSED)
                raise ExecutionError(f"a run of this session {state}; its memory is freed when it ends")

    def let_go(self) -> None:
        """Close, also where a runtime hangs: what a run still uses is freed by whoever comes back from it."""
        with suppress(ExecutionError):
            self.close()

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
