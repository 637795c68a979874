"""A run whose lanes are walked by threads of their own: handed out, driven, awaited, and given up where it hangs."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from time import monotonic

import numpy as np

from agent_sdk.engine.device import Device
from agent_sdk.engine.flight import Flight
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.lanes import FINISHED, NativeLoop, failed
from agent_sdk.engine.threads import LaneThread
from agent_sdk.errors import ProcessorLost, RunTimeoutError
from agent_sdk.machine.cores import bound_to

GRACE_S = 2.0
"""How long a run that its watchdog ended waits for the segments in flight before it leaves them behind."""


class LanesRun:
    """One run on several threads.

    Args:
        flight: what it writes into.
        home: the lane that the caller serves; -1 for none.
        hangs: told why, once lanes have been left behind in a runtime that hangs.
        is_back: called when the last of these has come back, by its thread; the flight is free from then on.
    """

    def __init__(
        self,
        flight: Flight,
        device: Device,
        home: int,
        interrupts: DeferredInterrupts,
        hangs: Callable[[str], None],
        is_back: Callable[[], None],
    ) -> None:
        assert isinstance(flight.loop, NativeLoop)
        assert device.threads is not None
        self._flight, self._loop, self._program = flight, flight.loop, flight.program
        self._device, self._pool = device, device.threads
        self._home, self._interrupts = home, interrupts
        self._hangs, self._is_back = hangs, is_back
        self._lock = threading.Lock()
        self._threads: dict[int, LaneThread] = {}
        self._left: set[int] = set()

    def walk(self, key: int, offsets: Sequence[np.ndarray], end: float) -> None:
        """All of it, until ``end`` (``time.monotonic``) at most. Raises like ``Executor.run``."""
        loop, interrupts = self._loop, self._interrupts
        others = [lane for lane in range(len(self._program.lanes)) if lane != self._home]
        threads = self._pool.take([self._program.lanes[lane] for lane in others])
        self._threads = dict(zip(others, threads, strict=True))
        aside = loop.begin(key, offsets, occasions=self._flight.occasions)
        try:
            if self._flight.failures:  # ended before it began: what begins now would not know
                loop.stop()
            interrupts.tell(self._flight.fail)
            loop.hand_out(self._threads)
            if self._home >= 0:
                self._drive((loop.beside if aside else self._program.seats)[self._home])
            interrupts.listen()
            if not loop.wait(-1.0 if end == inf else max(end - monotonic(), 0.0)):
                raise RunTimeoutError(f"the run took longer than allowed; {self._state()}")
            interrupts.raising = False
            self._pool.give_back(self._threads.values())
            self._threads = {}
            if loop.stopped:  # by a failure, or a Ctrl-C of which Python has not told yet
                raise [*self._flight.failures, *loop.failures(), KeyboardInterrupt()][0]
        except BaseException as error:
            interrupts.raising = False
            if self._threads:
                self._give_up(error)
            raise

    def _drive(self, seat: frozenset[int]) -> None:
        """Serve the caller's lane, from these CPUs on. Failures stay in the flight, that they are gone among them."""
        try:
            with bound_to(seat):
                self._loop.drive(self._home, interruptible=self._interrupts.cancels)
        except ProcessorLost as error:
            self._flight.fail(failed(self._program.by_lane[self._home][0], error))

    def _give_up(self, error: BaseException) -> None:
        """Stop a run that cannot go on: let the segments in flight end, leave behind those that hang.

        A segment hangs when the watchdog has ended the run and the time of grace is over too, or when the caller
        presses Ctrl-C meanwhile. Raises KeyboardInterrupt if that is the first one.
        """
        earlier = [failure for failure in self._flight.failures if failure is not error]
        impatient = isinstance(error, KeyboardInterrupt) and any(isinstance(e, KeyboardInterrupt) for e in earlier)
        self._flight.fail(error)
        grace = GRACE_S if isinstance(error, RunTimeoutError) else 0.0 if impatient else -1.0
        pressed: BaseException | None = None
        try:
            self._interrupts.raising = True
            self._loop.wait(grace)
        except BaseException as now:  # noqa: BLE001  Ctrl-C: those that have not ended by now are left behind
            pressed = now
        finally:
            self._interrupts.raising = False
        self._leave_behind()
        if pressed is not None and not isinstance(error, KeyboardInterrupt):
            raise pressed from error

    def _leave_behind(self) -> None:
        """Wait no more for lanes that have not ended; their flight comes back when their runtimes do."""
        with self._lock:
            hanging = [lane for lane in sorted(self._threads) if self._loop.done(lane) < FINISHED]
            names = ", ".join(self._threads[lane].name for lane in hanging)
            why = f"a runtime still hangs on {names} in a run that was given up; {self._state()}"
            self._device.arbiter.hanging = why
            for lane, thread in self._threads.items():
                thread.left = partial(self._came_back, lane)
                if self._loop.leave_behind(lane):
                    self._left.add(lane)
                else:
                    del thread.left
            if self._left:
                self._hangs(why)
            self._loop.wait()  # before the flight can come back: lanes that are just ending count in its next run else
        self._pool.give_back(thread for lane, thread in self._threads.items() if lane not in self._left)

    def _came_back(self, lane: int) -> None:
        """On the thread of a lane that was left behind: the runtime came back after all; what it held is free again."""
        self._pool.give_back([self._threads[lane]])
        with self._lock:
            self._left.discard(lane)
            last = not self._left
        if last:
            self._is_back()

    def _state(self) -> str:
        parts = []
        for lane, row in enumerate(self._program.by_lane):
            done = self._loop.done(lane)
            if done < len(row):
                segment = row[done]
                parts.append(f"'{segment.processor}' is at segment {segment.index} (op '{segment.ops[0]}')")
        return "; ".join(parts) or "all segments are finished"
