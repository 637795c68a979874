"""Runs of several networks on one agent: they wait in one queue, and its policy says who runs next, and where.

A network that is *spread* (``groups.py``) is ready on several core groups, and the policy gives each run one of them.
Any other is answered by whoever answers its session: a plan of several segments begins at once, and its keys decide at
the device's arbiter, segment by segment; what runs in one go takes its turn when the cores are free.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from itertools import pairwise
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from agent_sdk.cancel import cancelling
from agent_sdk.engine import Device, Executor
from agent_sdk.engine.arbiter import Hold
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.errors import (
    SESSION_CLOSED,
    DeviceClosedError,
    DroppedError,
    ExecutionError,
    FeedError,
    NotWantedError,
    ProcessorLost,
    QueueFullError,
    RunTimeoutError,
    forgiven,
)
from agent_sdk.forking import Forks, watch_forks
from agent_sdk.journey.plans import Feed, Plans
from agent_sdk.journey.trial import FAILURES
from agent_sdk.pool import Pool
from agent_sdk.scheduling.groups import Group
from agent_sdk.scheduling.job import USUAL, Job, JobStats, Terms
from agent_sdk.scheduling.member import Member, Where
from agent_sdk.scheduling.network import NEVER, Network
from agent_sdk.scheduling.parts import Part
from agent_sdk.scheduling.policies import Fifo
from agent_sdk.scheduling.request import Request
from agent_sdk.scheduling.scheduler import Dispatch, Policy, Scheduler

MOST_QUEUED: Final = 1024
"""Runs that may wait by default."""
THREADS: Final = 64
"""Runs under way at most; the arbiter tells no more resources apart."""
JointParts: TypeAlias = Mapping[Plans, Sequence[Part]]
"""By network its runs in a round of a joint plan."""
NO_PARTS: Final[JointParts] = MappingProxyType({})
"""Of no joint plan."""
LATE: Final = 2
"""A run is not as planned that is asked for further from its time than one in so many parts of the longest run of its
joint plan, or of the shortest period."""


class _Started(NamedTuple):
    """What runs: a subgraph, for which job, of whose network."""

    dispatch: Dispatch
    job: Job
    member: Member


Lost: TypeAlias = list[tuple[Job, ExecutionError]]
"""Jobs that nobody runs, and why."""


class Jobs(Forks):
    """The queue of an agent.

    Args:
        device: what runs them.
        policy: who goes first, and where.
        most: runs that may wait.

    Attributes:
        where: the device's processors, as the scheduler numbers them.
    """

    def __init__(self, device: Device, policy: Policy, most: int = MOST_QUEUED) -> None:
        self._device, self._most = device, most
        self.where = Where(device)
        self._scheduler = Scheduler(policy, self.where.masks, Fifo())
        self._members: dict[Plans, Member] = {}
        self._left: WeakSet[Plans] = WeakSet()
        self._stats: WeakKeyDictionary[Plans, JobStats] = WeakKeyDictionary()
        self._of: dict[Network, Member] = {}
        self._jobs: dict[Request, Job] = {}
        self._closed = False
        self.in_child()
        watch_forks(self)

    def in_child(self) -> None:
        """No job that waits in the parent is run here."""
        self._lock = threading.RLock()
        self._alarm: threading.Timer | None = None
        self._alarm_ns = NEVER
        self._threads = Pool(THREADS, thread_name_prefix="hope-job")

    @property
    def policy(self) -> Policy:
        """Who goes first, and where."""
        return self._scheduler.policy

    def use(self, policy: Policy, parts: JointParts = NO_PARTS) -> None:
        """Have another policy decide from now on; it may follow a joint plan, of which these are the networks' parts.

        Whoever opened the parts closes them, once another policy decides. Raises DeviceClosedError where the session of
        one is closed.
        """
        with self._lock:
            following = {self._open(plans): own for plans, own in parts.items()}
            for member in self._members.values():
                member.parts = ()
            for member, own in following.items():
                member.parts = own
            self._scheduler.policy = policy
            runs = [part.finish_ns - part.start_ns for own in parts.values() for part in own]
            apart = [b.release_ns - a.release_ns for own in parts.values() for a, b in pairwise(own)]
            late_ns = min([max(runs, default=0), *filter(None, apart)]) // LATE
            policy.follow({member.network: member.planned() for member in following}, late_ns)

    @property
    def waiting(self) -> int:
        """How many jobs wait or run."""
        return len(self._jobs)

    def stats(self, plans: Plans) -> JobStats:
        """What became of a session's jobs, also once it is closed."""
        with self._lock:
            return self._stats.setdefault(plans, JobStats())

    def submit(self, plans: Plans, inputs: Feed, terms: Terms = USUAL) -> Job:
        """Ask for a run; see ``Agent.submit``."""
        with DeferredInterrupts():
            return self._submit(plans, inputs, terms, here=False)[0]

    def run(self, plans: Plans, inputs: Feed, terms: Terms = USUAL) -> dict[str, Any]:
        """Ask for a run and wait for it; the calling thread computes it where its turn comes at once.

        It is cancelled with what the thread does it for (``agent_sdk.cancel``).
        """
        job = mine = None
        try:
            with DeferredInterrupts():
                job, mine = self._submit(plans, inputs, terms, here=True)
            with cancelling(job.cancel):
                if mine is not None:
                    self._work(mine, only=True)
                return job.result()
        except BaseException:
            if job is not None:
                job.cancel()  # a Ctrl-C: nobody waits any more
                if mine is not None and not job.started_ns:
                    with DeferredInterrupts():
                        self._work(mine, only=True)  # it computes nothing any more, and gives back what it was given
            raise

    def _submit(self, plans: Plans, inputs: Feed, terms: Terms, here: bool) -> tuple[Job, _Started | None]:
        """Queue a run; it, and where it starts ``here`` what the caller is to work on. With interrupts deferred."""
        now = perf_counter_ns()
        self._device.refuse_when_forked()
        deadline = None if terms.deadline_ms is None else now + round(float(terms.deadline_ms) * 1e6)
        known = self._members.get(plans)
        fits = known is None or known.fits(inputs)
        with self._lock:
            if self._closed:
                raise DeviceClosedError("the agent is closed")
            if len(self._jobs) >= self._most:
                raise QueueFullError(f"{len(self._jobs)} runs wait already, and no more may; try again later")
            member = self._open(plans)
            member.look()
            member.stats.submitted += 1
            request = self._scheduler.submit(
                member.network,
                now,
                deadline_ns=deadline,
                priority=terms.priority,
                on_late=terms.on_late,
                fits=fits,
            )
            job = self._jobs[request] = Job(request, inputs, terms.timeout_s, member, self.cancel)
            mine, lost = self._decide(kept=job if here else None)
        _tell(lost)
        return job, mine

    def cancel(self, job: Job) -> bool:
        """Take a job out, or end it; see ``Job.cancel``."""
        with DeferredInterrupts():
            with self._lock:
                if job.done() or job.request not in self._jobs:
                    return job.cancelled()
                waits = self._scheduler.cancel(job.request)
                lost: Lost = []
                if waits:
                    del self._jobs[job.request]
                    job.owner.stats.cancelled += 1
                    _, lost = self._decide()
            _tell(lost)
            if waits:
                job.give_up()
            else:
                job.taken_back = True
                job.wanted.cancel()
            return True

    def spread(self, plans: Plans, groups: Mapping[str, Group], in_flight: int) -> None:
        """Have a network's runs go to these core groups, by processor."""
        with self._lock:
            before = self._open(plans).spread(groups, in_flight)
        for executor in before:
            executor.close()

    def alone_ms(self, plans: Plans) -> float:
        """What a run is expected to take with the machine to itself."""
        with self._lock:
            member = self._open(plans)
            member.look()
            return min(ns for _, ns in member.network.wholes()) / 1e6

    def degrade(self, plans: Plans, to: Plans) -> bool:
        """Have another network answer runs of one that may be degraded and would be late; False if that leads back."""
        with self._lock:
            self._open(to).look()
            own, network = self._open(plans).network, self._open(to).network
            further: Network | None = network
            while further is not None and further is not own:
                further = further.cheaper
            if further is None:
                own.cheaper = network
            return further is None

    def leave(self, plans: Plans) -> None:
        """A session is closed: its jobs that wait fail, those that run end, and its executors are closed.

        Jobs of others that were degraded to it are answered by their own sessions.
        """
        with DeferredInterrupts():
            with self._lock:
                self._left.add(plans)
                member = self._members.pop(plans, None)
                if member is None:
                    return
                executors = [*member.executors.values()]
                here = [job for job in self._jobs.values() if job.request.network is member.network]
                own = [job for job in self._jobs.values() if job.owner is member]
                del self._of[member.network]
                self._scheduler.active.pop(member.network, None)
                if member.parts:
                    self.use(self.policy)
                for other in self._of:
                    other.cheaper = None if other.cheaper is member.network else other.cheaper
                waiting = [job for job in own if self._scheduler.cancel(job.request)]
                for job in waiting:
                    del self._jobs[job.request]
                    member.stats.failed += 1
                for job in here:
                    if self._is_open(job.owner) and self._scheduler.cancel(job.request):
                        self._scheduler.wait_again(job.request, job.owner.network)
                lost = [] if self._closed else self._decide()[1]
            _tell(lost)
            for job in waiting:
                job.set_exception(DeviceClosedError(SESSION_CLOSED))
            for job in own:
                job.wanted.cancel()
        for executor in executors:
            executor.close()

    def close(self) -> None:
        """Fail what waits, end what runs, and take nothing any more. Idempotent."""
        with self._lock:
            self._closed = True
            members = list(self._members)
        if not self._device.forked:
            for plans in members:
                self.leave(plans)
            with self._lock:
                if self._alarm is not None:
                    self._alarm.cancel()
            self._threads.shutdown(wait=False)

    def _is_open(self, member: Member) -> bool:
        """Whether its session is not closed. With the lock."""
        return member.network in self._of

    def _open(self, plans: Plans) -> Member:
        """A session's member. Raises DeviceClosedError once the session is closed."""
        member = self._members.get(plans)
        if member is None:
            if plans in self._left:
                raise DeviceClosedError(SESSION_CLOSED)
            member = self._members[plans] = Member(plans, self.where, stats=self.stats(plans))
            self._of[member.network] = member
        return member

    def _decide(self, kept: Job | None = None, *, first: bool = False) -> tuple[_Started | None, Lost]:
        """Have threads run what starts now, but for what the caller runs: this job, or the ``first``; that, and which
        jobs are lost: they were dropped, or no thread is left for them. With the lock.
        """
        mine: _Started | None = None
        lost: Lost = []
        over = False
        while not over:
            started, dropped = self._scheduler.decide(perf_counter_ns())
            over = True
            for dispatch in started:
                one = _Started(dispatch, self._jobs[dispatch.request], self._of[dispatch.request.network])
                if mine is None and (first or one.job is kept):
                    mine = one
                    continue
                try:
                    self._threads.begin(self._work, one)
                except ProcessorLost as error:  # others may have what was taken for it
                    self._scheduler.finished(dispatch, None, failed=True)
                    del self._jobs[dispatch.request]
                    one.job.owner.stats.failed += 1
                    lost.append((one.job, error))
                    over = False
            for request in dropped:
                job = self._jobs.pop(request)
                job.owner.stats.dropped += 1
                self._note_deadline(job, missed=True)
                allowed = ((job.deadline_ns or 0) - job.release_ns) / 1e6
                lost.append((job, DroppedError(f"the run could not have ended within its {allowed:.3f} ms")))
        if self._scheduler.look_ns < self._alarm_ns:
            self._set_alarm(self._scheduler.look_ns)
        return mine, lost

    def _set_alarm(self, look_ns: int) -> None:
        """Decide again then: somebody has waited for long enough. With the lock."""
        if self._alarm is not None:
            self._alarm.cancel()
        alarm = threading.Timer(max(look_ns - perf_counter_ns(), 0) / 1e9, self._look_again, (look_ns,))
        alarm.daemon = True
        self._alarm, self._alarm_ns = alarm, look_ns
        try:
            alarm.start()
        except RuntimeError:  # no thread is left: the next decision sets it
            self._alarm, self._alarm_ns = None, NEVER

    def _look_again(self, look_ns: int) -> None:
        with DeferredInterrupts():
            with self._lock:
                if self._closed or look_ns != self._alarm_ns:
                    return
                self._alarm, self._alarm_ns = None, NEVER
                _, lost = self._decide()
            _tell(lost)

    def _note_deadline(self, job: Job, *, missed: bool) -> None:
        """Have the planner told whether a job kept its deadline: of its own session's plan, also where a cheaper
        network answered. With the lock.
        """
        if job.request.deadline_ns is not None and self._is_open(job.owner):
            job.owner.note_deadline(missed=missed)

    def _work(self, started: _Started, *, only: bool = False) -> None:
        """Run what was started, and unless it is to be ``only`` that what starts behind it, on the same thread."""
        following: _Started | None = started
        hold = Hold(self._device.arbiter)
        try:
            while following is not None:
                following = self._ran(following, hold, only=only)
        finally:
            hold.give_back()

    def _ran(self, one: _Started, hold: Hold, *, only: bool = False) -> _Started | None:
        """Run what was started; what this thread shall run next, unless it shall run ``only`` this.

        It holds the cores that it has until it knows that: a decision costs less than who would compute meanwhile.
        """
        job, member = one.job, one.member
        own = job.owner is member  # else it was degraded to another network
        job.started_ns = perf_counter_ns()
        found: dict[str, Any] | BaseException
        took: int | None = None
        failed: Executor | None = None
        try:
            job.wanted.check()
            fits = job.request.fits if own else member.fits(job.inputs)
            executor = member.executor(one.dispatch) if fits else None
            by_start = self._scheduler.policy.by_start
            try:
                found, waited_ns = member.outputs(job, one.dispatch, executor, hold, by_start=by_start)
            except (*FAILURES, FeedError) as error:
                if executor is None:
                    raise
                job.where = ""
                # Where that fails too, it is the feed's fault.
                found, waited_ns = member.outputs(job, one.dispatch, None, hold, by_start=by_start)
                # A feed is refused that was asked for before the network was spread anew, for other shapes.
                failed = None if isinstance(error, FeedError) or forgiven(error) else executor
            job.ended_ns = perf_counter_ns()
            took = None if waited_ns is None else job.ended_ns - job.started_ns - waited_ns
        except NotWantedError as error:
            found = CancelledError() if job.wanted.cancelled else error
        except BaseException as error:  # noqa: BLE001  the job's caller is who is told
            found = error
        with DeferredInterrupts():
            with self._lock:
                if failed is not None:
                    member.lose(failed)  # nothing where it was spread again meanwhile
                    if any(failed is part.executor for part in member.parts):
                        self.use(self.policy)
                if isinstance(found, CancelledError) and not job.taken_back:
                    found = DeviceClosedError(SESSION_CLOSED)  # its session was closed under it
                # It does not run there where its executor has gone meanwhile, or a plan has come.
                known = member.network.runs_on(one.dispatch.processor)
                self._scheduler.finished(one.dispatch, took if known else None, failed=True)
                unanswered = isinstance(found, Exception) and not isinstance(found, CancelledError | RunTimeoutError)
                again = unanswered and not own and not self._closed and self._is_open(job.owner)
                if again:  # who was to answer instead is closed, fails, or takes no such feed
                    job.request.on_late = "late"
                    self._scheduler.wait_again(job.request, job.owner.network)
                else:
                    del self._jobs[job.request]
                    late = job.is_late
                    job.owner.stats.count(found, late=late)
                    if not isinstance(found, BaseException):
                        self._note_deadline(job, missed=late)
                following, lost = self._decide(first=not only)
            if following is None:
                hold.give_back()
            _tell(lost)
            if not again:
                job.settle(found)
        if failed is not None:
            failed.let_go()
        return following


def _tell(lost: Lost) -> None:
    """Say so to those who wait for jobs. Without the lock, for their callbacks may ask for more."""
    for job, error in lost:
        job.set_exception(error)
