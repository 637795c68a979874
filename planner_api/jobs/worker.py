"""A worker: leases jobs, does each in a killable child, stores the result under the fence, reaps the dead."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import structlog

from planner_api.errors import DatabaseAwayError
from planner_api.jobs.chores import end, keep_doing, report
from planner_api.jobs.kind import BehindError, JobError, Kind, Lease, Task
from planner_api.jobs.process import JobProcess, NoChildError, Tell
from planner_api.jobs.queue import Queue
from planner_api.jobs.wanted import WORK
from planner_api.jobs.workers import tell_end, tell_life

log = structlog.get_logger(__name__)

LOOKED_S = 5.0
"""How often it writes down that it lives."""
IDLE_S = 5.0
"""Longest pause between two looks into the queue; news of work ends it."""
PERSIST_S = 120.0
"""How long a worker tries to store what it found while the database is away."""
RETRY_S = 0.5
NO_CHILD_S = 5.0
"""How long a slot whose child did not start takes no job: others may do it meanwhile."""
HAND_BACK_S = 5.0
"""How long a stop waits until a job is in the queue again; one that is not waits until its lease expires."""

T = TypeVar("T")


class Worker:
    """Runs until told to stop; any number of them, in any number of processes, share the queue.

    Args:
        queue: where jobs come from.
        kinds: every kind that there is.
        slots: for each child the names of the kinds that it does.
        runner: makes a child.
        tell: answers what a child asks.
        count: called with kind, outcome and seconds of each job that has ended.
        grace_s: how long what runs may go on after a stop before it is handed back.
        pulse_s: how often it looks for the work of vanished workers.
        eager: whether children start before there is work.
    """

    def __init__(
        self,
        queue: Queue,
        kinds: Iterable[Kind],
        slots: Sequence[Sequence[str]],
        runner: Callable[[], JobProcess],
        *,
        tell: Tell,
        count: Callable[[str, str, float], None] | None,
        grace_s: float,
        pulse_s: float = 1.0,
        eager: bool = False,
    ) -> None:
        self._database = queue.database
        self._queue = queue
        self._kinds = {kind.name: kind for kind in kinds}
        self._slots = [(tuple(names), runner()) for names in slots]
        self._tell = tell
        self._count = count
        self._grace_s = grace_s
        self._pulse_s = pulse_s
        self._looked_at = -math.inf
        self._eager = eager
        self._awake = asyncio.Event()
        self._awake.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then finish or hand back what runs, and end every child."""
        pulse = keep_doing(self._pulse, "worker_pulse", every_s=self._pulse_s)
        slots = [
            asyncio.create_task(self._serve(names, runner, stop), name=f"slot {number}")
            for number, (names, runner) in enumerate(self._slots)
        ]
        try:
            await stop.wait()
            await asyncio.wait(slots, timeout=self._grace_s)
        finally:
            await end(*slots, pulse)
            await asyncio.gather(*(runner.kill() for _, runner in self._slots))
        with contextlib.suppress(DatabaseAwayError):
            await tell_end(self._database)

    def rest(self, resting: bool) -> None:
        """Have every child stand still, and give none another job, or go on."""
        (self._awake.clear if resting else self._awake.set)()
        for _, runner in self._slots:
            runner.rest(resting)

    async def _pulse(self) -> None:
        if time.monotonic() - self._looked_at >= LOOKED_S:
            await tell_life(self._database, len(self._slots))
            self._looked_at = time.monotonic()
        if reaped := await self._queue.reap(self._kinds):
            log.warning("work_reaped", keys=reaped)

    async def _serve(self, names: Sequence[str], runner: JobProcess, stop: asyncio.Event) -> None:
        if self._eager:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):  # the first job will say so
                await runner.start()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            with self._queue.news.watching(WORK, "") as work:
                while not stop.is_set():
                    work.clear()
                    lease, due_in_s = await self._next(names)
                    if lease is not None:
                        if not await self._do(lease, runner):
                            await asyncio.wait({stopped}, timeout=NO_CHILD_S)
                        continue
                    self._queue.no_child = ""
                    came = asyncio.ensure_future(work.wait())
                    pause_s = IDLE_S if due_in_s is None else min(due_in_s, IDLE_S)
                    await asyncio.wait({stopped, came}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                    came.cancel()
        finally:
            stopped.cancel()

    async def _next(self, names: Sequence[str]) -> tuple[Lease | None, float | None]:
        """See ``Queue.next``; where that fails there is nothing for now.

        Shielded: who is cancelled meanwhile hands back what may have been leased by then.
        """
        taking = asyncio.ensure_future(self._queue.next(names))
        try:
            return await asyncio.shield(taking)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
            report("queue", error)
            return None, None
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, DatabaseAwayError):
                lease, _ = await asyncio.wait_for(taking, HAND_BACK_S)
                if lease is not None:
                    await self._hand_back(lease)
            raise

    async def _hand_back(self, lease: Lease) -> bool:
        """Hand a job back, which outlives the cancellation that asks for it; whether that was possible."""
        with contextlib.suppress(DatabaseAwayError, TimeoutError):
            return await asyncio.shield(asyncio.wait_for(self._queue.hand_back(lease), HAND_BACK_S))
        return False

    async def _do(self, lease: Lease, runner: JobProcess) -> bool:
        """Do one leased job and end its lease in one way or another; return whether there was a child for it."""
        started, has_child = time.monotonic(), True
        outcome = "lost"
        try:
            async with self._kept(lease):
                outcome = await self._outcome(lease, runner)
            self._queue.no_child = ""
        except asyncio.CancelledError:
            if await self._hand_back(lease):
                outcome = "handed_back"
            raise
        except NoChildError as error:
            has_child = False
            self._queue.no_child = repr(error.__cause__)[:500]
            log.error("no_child", kind=lease.kind, key=lease.key, error=self._queue.no_child)
            if await self._hand_back(lease):
                outcome = "handed_back"
        except Exception:
            log.exception("job_left", kind=lease.kind, key=lease.key)  # its lease expires, and another try follows
        finally:
            seconds = time.monotonic() - started
            named = {"kind": lease.kind, "key": lease.key, "attempt": lease.attempt}
            log.info("job_ended", **named, outcome=outcome, seconds=seconds)
            if self._count is not None:
                self._count(lease.kind, outcome, seconds)
        return has_child

    async def _outcome(self, lease: Lease, runner: JobProcess) -> str:
        kind, task = self._kinds[lease.kind], None
        try:
            task = await self._persistently(lambda: kind.load(lease))
            prepared = None
            if task is not None:
                await self._awake.wait()
                answer = await runner.run(kind.function, task.order, self._tell, task.timeout_s, kind.answers)
                prepared = await kind.prepare(lease, task, answer)
        except NoChildError:
            raise
        except BehindError as error:
            behind = error.job
            held = await self._persistently(lambda: self._queue.hand_back(lease, behind))
            return "handed_back" if held else "lost"
        except JobError as error:
            reason, permanent = str(error), error.permanent
            say = log.info if permanent else log.warning  # which is an answer, and told to whoever asked
            say("job_failed", kind=lease.kind, key=lease.key, attempt=lease.attempt, error=reason[:500])
            again = await self._persistently(
                lambda: self._queue.fail(kind, lease, reason, permanent=permanent, task=task)
            )
            return {True: "retried", False: "failed", None: "lost"}[again]
        return "done" if await self._persistently(lambda: self._commit(kind, lease, task, prepared)) else "lost"

    async def _commit(self, kind: Kind, lease: Lease, task: Task | None, prepared: Any) -> bool:
        try:
            async with self._database.write() as session:
                again = task is not None and await kind.store(session, lease, task, prepared)
                if not await self._queue.finish(session, lease, again=again):
                    raise _LostError
        except _LostError:
            return False
        return True

    async def _persistently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the database is there; a long outage ends in the last error, and the lease expires."""
        deadline = time.monotonic() + PERSIST_S
        while True:
            try:
                return await call()
            except DatabaseAwayError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    @contextlib.asynccontextmanager
    async def _kept(self, lease: Lease) -> AsyncIterator[None]:
        """Renew the lease while the block runs; leave the block quietly when the lease is lost."""
        body = asyncio.current_task()
        assert body is not None
        lost = False

        async def renew() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(self._queue.ttl_s / 3)
                with contextlib.suppress(DatabaseAwayError):  # the fence decides in the end
                    if not await self._queue.renew(lease):
                        lost = True
                        body.cancel()
                        return

        renewer = asyncio.create_task(renew(), name=f"renew {lease.kind} {lease.key}")
        self._queue.kept.add(lease)
        try:
            yield
        except asyncio.CancelledError:
            if not lost or body.uncancel() > 0:
                raise
        finally:
            self._queue.kept.discard(lease)
            await end(renewer)


class _LostError(Exception):
    """The lease was lost: the transaction rolls back."""
