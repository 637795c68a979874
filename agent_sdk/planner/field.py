"""How plans do in the field: now and then a few of a session's own runs are told to the planner, behind the runs.

A run leaves one number in a bounded queue. A thread of its own looks at the queues, sends the median and the 99th
percentile of ``SAMPLE`` runs of each plan and how many missed their deadline, all in one message, and forgets what the
planner could not be told. Samples are of one size, so that a planner that compares two versions on this device compares
like with like.
"""

import math
import random
import statistics
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from agent_sdk.errors import ProcessorLost, WrongOutput
from agent_sdk.pool import begin_thread
from hope_schema import MeasuredRun, PlanReply

SAMPLE: Final = 64
"""Runs that one report is the median of; the latest ones count."""
LOOK_S: Final = 60.0
"""How often the queues are looked at, give or take a half: a fleet does not report in step."""
EVERY_S: Final = 600.0
"""Shortest time between two reports on the same plan version."""
MAX_REFUSED: Final = 64
"""Plan versions that cannot run here and are still to be told of."""

Version = tuple[str, int]
"""(plan id, version)"""


class Sample(deque[float]):
    """Microseconds of a plan's latest runs that were alone; infinite ones failed. Appending is all that a run does.

    Attributes:
        missed: whether each of the latest runs with a deadline missed it; a dropped one did.
    """

    def __init__(self, version: Version) -> None:
        super().__init__(maxlen=SAMPLE)
        self.version = version
        self.missed: deque[bool] = deque(maxlen=SAMPLE)
        self.due = 0.0

    def taken(self, now: float) -> MeasuredRun | None:
        """What is to be reported now, if anything; it is then forgotten here."""
        runs, missed = list(self), list(self.missed)
        failed = sum(map(math.isinf, runs))
        timed = len(runs) >= SAMPLE or failed
        if now < self.due or not (timed or len(missed) >= SAMPLE):
            return None
        self.missed.clear()
        if timed:
            self.clear()
        else:
            runs = []  # they are too few yet
        self.due = now + EVERY_S
        times = sorted(us for us in runs if math.isfinite(us))
        plan_id, version = self.version
        return MeasuredRun(
            plan_id=plan_id,
            plan_version=version,
            measured_us=statistics.median(times) if times else None,
            p99_us=times[math.ceil(0.99 * len(times)) - 1] if times else None,
            runs=len(times),
            failures=failed,
            deadlines=len(missed),
            missed=sum(missed),
        )


class Field:
    """What is to be told of the plans of this device.

    Args:
        send: tells the planner; returns what went wrong, if anything, and never raises.
    """

    def __init__(self, send: Callable[[Sequence[MeasuredRun]], str]) -> None:
        self._send = send
        self._samples = weakref.WeakValueDictionary[Version, Sample]()
        self._refused: OrderedDict[Version, MeasuredRun] = OrderedDict()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, reply: PlanReply) -> Sample:
        """Return the queue in which all leave their runs of a plan version; followed as long as somebody holds it."""
        version = (reply.plan_id, reply.version)
        with self._lock:
            sample = self._samples.setdefault(version, Sample(version))
        self._start()
        return sample

    def refuse(self, reply: PlanReply, error: Exception) -> None:
        """Note that a plan version cannot answer here: it failed, or its answer was wrong."""
        wrong = isinstance(error, WrongOutput)
        told = MeasuredRun(
            plan_id=reply.plan_id, plan_version=reply.version, measured_us=None, runs=0,
            failures=int(not wrong), wrong=int(wrong),
        )  # fmt: skip
        with self._lock:
            self._refused[reply.plan_id, reply.version] = told
            while len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
        self._start()

    def tell(self) -> None:
        now = time.monotonic()
        with self._lock:
            refused, self._refused = list(self._refused.values()), OrderedDict()
            samples = list(self._samples.values())
        found = {(run.plan_id, run.plan_version): run for sample in samples if (run := sample.taken(now)) is not None}
        found |= {(run.plan_id, run.plan_version): run for run in refused}
        if found:
            self._send(list(found.values())[:256])

    def stop(self) -> None:
        """Send nothing any more; does not wait for what is being sent."""
        self._stopped.set()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                with suppress(ProcessorLost):  # whoever follows a plan next tries again
                    self._thread = begin_thread(self._tell_for_ever, "hope-field")

    def _tell_for_ever(self) -> None:
        while not self._stopped.wait(LOOK_S * random.uniform(0.5, 1.5)):
            self.tell()
