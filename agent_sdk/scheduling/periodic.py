"""A run of a network every so many milliseconds, until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from time import monotonic
from typing import Final

from agent_sdk.closing import Closes
from agent_sdk.errors import DeviceClosedError, InputError, QueueFullError, said
from agent_sdk.journey.plans import Feed
from agent_sdk.pool import begin_thread
from agent_sdk.scheduling.job import Job

TICK_MS: Final = 1e-6
"""No clock here tells times apart that are closer."""

log = logging.getLogger(__name__)


def refuse_unless_period(every_ms: float) -> None:
    """Raise InputError unless a run may be asked for every so many milliseconds: a clock's tick at least."""
    if not TICK_MS <= every_ms < 1e9:
        raise InputError(f"every_ms is to be milliseconds, {TICK_MS:f} or more, not {every_ms!r}")


class Periodic(Closes):
    """Asks for a job each period, from a thread of its own; made by ``Agent.stream``.

    Args:
        name: the network's, for the log.
        submit: asks for one.
        inputs: what each run computes from, or makes that when its time has come.
        every_ms: the period.
        told: hears of every job that has ended; is to be brief.

    Attributes:
        refused: how many were not asked for: the queue was full, or their time had passed.
        failure: what ended the stream, else None.

    Raises ProcessorLost where no thread can be started.
    """

    def __init__(
        self,
        name: str,
        submit: Callable[[Feed], Job],
        inputs: Feed | Callable[[], Feed],
        every_ms: float,
        told: Callable[[Job], object],
    ) -> None:
        self._name = name
        self._submit, self._inputs, self._every_s, self._told = submit, inputs, float(every_ms) / 1e3, told
        self._stopped = threading.Event()
        self.refused = 0
        self.failure: Exception | None = None
        self._thread = begin_thread(self._ask, "hope-stream")

    def _ask(self) -> None:
        due = monotonic()
        while not self._stopped.wait(max(due - monotonic(), 0.0)):
            try:
                job = self._submit(self._inputs() if callable(self._inputs) else self._inputs)
                job.add_done_callback(lambda done: self._told(done))  # type: ignore[arg-type]
            except QueueFullError:
                self.refused += 1
            except Exception as error:  # noqa: BLE001  the session is closed, or the caller's function raised
                level = logging.INFO if isinstance(error, DeviceClosedError) else logging.WARNING
                log.log(level, "%s: a stream has ended: %s", self._name, said(error))
                self.failure = error
                return
            due += self._every_s
            behind = int((monotonic() - due) / self._every_s)
            if behind > 0:  # the machine slept: what is past is past
                self.refused += behind
                due += behind * self._every_s

    def close(self) -> None:
        """Ask for nothing any more; what was asked for goes on. Idempotent."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
