"""Policies by name: who goes first, and where. Pure; ``Scheduler`` asks them, in an agent as in a simulation."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import add
from typing import Final, NamedTuple

from agent_sdk.errors import UnknownNameError
from agent_sdk.scheduling.network import NEVER, Network
from agent_sdk.scheduling.request import PATIENCE_NS, Request
from agent_sdk.scheduling.scheduler import JointPlan, PlannedRun, Policy, Scheduler
from agent_sdk.scheduling.sequence import Choice

RECENT: Final = 10
"""Deadlines of a network count for others for so many times their own length."""
GIVES_UP: Final = 2.0
"""A run that may be dropped begins only where it costs fewer runs of another network their deadlines: as many as
possible are kept where not all can be (Moore and Hodgson drop the longest first)."""


class Fifo(Policy):
    """Each on the processor that would end it soonest if nobody else were there, in the order of arrival."""

    name = "fifo"

    def key(self, request: Request, tail_ns: int) -> int:
        """The release."""
        return request.ranked(request.release_ns)

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """Whoever's processor is not idle keeps it for itself."""
        for request in group:
            best = state.alone(request.network, request.unit)
            ns = request.network.expected(request.unit, best.last, best.processor)
            rest = best.end_ns - ns
            end = state.view(request).free_ns[best.processor] + ns + rest
            state.reserve(request, best._replace(end_ns=end))


class ShortestExpectedLatency(Policy):
    """Band's: again and again whose shortest expected latency is the largest, onto a busy processor too."""

    name = "shortest_expected_latency"

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """Everybody gets a processor."""
        while group:
            choices = [state.shortest(request) for request in group]
            at = max(range(len(group)), key=lambda index: choices[index].end_ns)  # of equals the first
            request = group.pop(at)
            choice = state.kept(request, choices[at])
            if choice is not None:
                state.take(request, choice)


class Heft(Policy):
    """Band's heterogeneous earliest finish time: the largest shortest latency first, among whose processor is idle.

    What is reserved for the next subgraph of another request counts as waiting.
    """

    name = "heft"

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """Whoever's processor is busy is counted as waiting there, and passed."""
        while group and state.any_idle():
            taken = self._one(state, group)
            if taken is None:
                return
            group.remove(taken)

    def _one(self, state: Scheduler, group: list[Request]) -> Request | None:
        """Who got a processor, or was dropped; None where nobody can."""
        waiting = [0] * len(state.masks)
        for other in state.under_way():
            if other.then is not None:
                waiting[other.then[0]] += other.then[1]
        yielding = list(group)
        while yielding:
            choices = [self._behind_others(state, request, waiting) for request in yielding]
            at = max(range(len(yielding)), key=lambda index: choices[index].end_ns)  # of equals the first
            request = yielding.pop(at)
            choice = state.kept(request, choices[at])
            if choice is None:
                return request
            if state.idle(request, choice.processor):
                then = choice.then
                request.then = then and (then[2], request.network.expected(*then))
                state.take(request, choice)
                return request
            waiting[choice.processor] += request.network.expected(request.unit, choice.last, choice.processor)
        return None

    def _behind_others(self, state: Scheduler, request: Request, waiting: Sequence[int]) -> Choice:
        """The way on, where what is reserved for the request itself is no waiting."""
        free = array("q", map(add, state.view(request).free_ns, waiting))
        if request.then is not None:
            free[request.then[0]] -= request.then[1]
        return state.shortest(request, free)


class LeastSlack(Policy):
    """Band's: least deadline - now - expected latency first; who has no deadline comes last.

    Whoever's processor is busy is passed, so that none stays idle while somebody can use it.
    """

    name = "least_slack"
    by_start = True

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """In the order of slack, as it was when this began."""
        found = {request: state.shortest(request) for request in group}

        def slack(request: Request) -> int:
            return NEVER if request.deadline_ns is None else request.deadline_ns - found[request].end_ns

        changed = False
        for request in sorted(group, key=slack):
            choice = state.kept(request, state.shortest(request) if changed else found[request])
            if choice is not None and state.idle(request, choice.processor):
                state.take(request, choice)
                changed = True
                if not state.any_idle():
                    return


class Planned(LeastSlack):
    """A joint plan of several networks, followed as long as they are asked for as planned; least slack first otherwise.

    A round is what the plan holds: one run of each network, or as many as its period has in the hyperperiod. It begins
    when the first of them is asked for. Whoever is asked for further from its planned release than the plan allows, or
    more often, begins another. A round follows the plan where the one before was whole: where a run stayed out, or came
    with inputs of another shape, everybody goes by slack until all have come as planned again.
    Without a plan it is ``least_slack``.
    """

    name = "planned"
    joint = True

    def __init__(self) -> None:
        self.follow({}, 0)

    def follow(self, plan: JointPlan, late_ns: int) -> None:
        """All networks have come together, until one does not."""
        self._plan, self._late_ns = plan, late_ns
        self._came = {network: len(runs) for network, runs in plan.items()}
        self._last_ns = dict.fromkeys(plan, -NEVER)
        self._whole, self._epoch_ns = True, -NEVER

    def arrived(self, request: Request) -> None:
        """It has its place in the round, or begins the next one."""
        runs = self._plan.get(request.network, ()) if request.fits else ()
        if not runs:
            return
        came = self._came[request.network]
        if came == len(runs) or not self._is_due(runs[came], request.release_ns):
            self._begin(request.release_ns - runs[0].release_ns)
            came = 0
        self._came[request.network], self._last_ns[request.network] = came + 1, request.release_ns
        request.run, request.epoch_ns = came, self._epoch_ns if self._whole else None

    def _is_due(self, run: PlannedRun, now_ns: int) -> bool:
        return abs(now_ns - self._epoch_ns - run.release_ns) <= self._late_ns

    def _begin(self, epoch_ns: int) -> None:
        """A round begins. Who has come just before, to one that is given up for it, has come to this one."""
        self._whole = all(self._came[network] == len(runs) for network, runs in self._plan.items())
        self._epoch_ns = epoch_ns
        for network, runs in self._plan.items():
            self._came[network] = int(not self._whole and self._is_due(runs[0], self._last_ns[network]))

    def key(self, request: Request, tail_ns: int) -> int:
        """Begin of the round + planned start; both this and the other's slack are times by which to start."""
        planned = self._planned(request)
        if planned is None or request.epoch_ns is None:
            return super().key(request, tail_ns)
        return request.ranked(request.epoch_ns + planned.start_ns)

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """In the order of planned starts, each where the plan has it; whoever finds that busy keeps it for itself."""
        runs = {request: run for request in group if (run := self._planned(request)) is not None}
        for request in sorted(runs, key=lambda one: self.key(one, 0)):
            run = runs[request]
            end = state.view(request).free_ns[run.processor] + run.finish_ns - run.start_ns
            state.reserve(request, Choice(end, request.network.units - 1, run.processor, None))
        super().choose(state, [request for request in group if request not in runs])

    def _planned(self, request: Request) -> PlannedRun | None:
        """The run of the plan that a request is, before it has begun; none where it was degraded to another network."""
        runs = self._plan.get(request.network, ())
        follows = request.epoch_ns is not None and not request.unit and request.run < len(runs)
        return runs[request.run] if follows else None


class _Option(NamedTuple):
    """A whole network on one processor.

    Attributes:
        harm: whether another that gives way to it misses its own deadline.
        risk: how many of the network's latest runs would have missed this deadline there; of others' runs theirs, where
            it has none.
        cost: core time that nobody else can use meanwhile; 0 where it has no deadline.
        end_ns: when it ends.
        processor: where.
    """

    harm: bool
    risk: int
    cost: int
    end_ns: int
    processor: int


class EarliestDeadline(Policy):
    """Earliest deadline first, each on the cheapest cores that still make it: what a small group saves serves others.

    A whole network goes to the idle processor on which fewest of its latest runs would have missed the deadline, of
    equal ones to that of least core time (its latency times the cores that it has, or that idle while another gives way
    to it); where waiting for a busy one makes the deadline and no idle one does, or who gives way would miss its own,
    that is kept for it. Who can make it nowhere goes behind all who can. Nobody takes cores that the networks asked for
    lately need to make their deadlines side by side, or, where there are not enough for that, so much for so long that
    one of them could not make its deadline any more, where there is another way. What has no deadline goes where fewest
    of the latest runs of those would have missed theirs, stepping in at its borders, of equal ones where it ends
    soonest. Where there is no other way, that waits, and so does what may be dropped and would cost several others
    theirs, unless its network has been asked in vain for a second. Nobody waits for networks of a lower priority: it
    goes where it costs only those theirs.
    """

    name = "earliest_deadline"

    def choose(self, state: Scheduler, group: list[Request]) -> None:
        """First those who can make their deadlines, then the others, then who has none."""
        hopeless: list[Request] = []
        for request in sorted(group, key=lambda one: (one.deadline_ns is None, one.due_ns)):
            if not state.any_idle():
                return
            if not self._place(state, request):
                hopeless.append(request)
        for request in hopeless:
            self._late(state, request)

    def _place(self, state: Scheduler, request: Request) -> bool:
        """Whether a request has been dealt with; False where it cannot make its deadline."""
        limit = 2 * NEVER if request.deadline_ns is None else request.deadline_ns
        others = _rivals(state, request) if request.deadline_ns is None else []
        options = _options(state, request, limit, others)
        idle = [one for one in sorted(options) if one.end_ns <= limit and state.idle(request, one.processor)]
        chosen = None
        if request.deadline_ns is not None:
            chosen = next((one for one in idle if _leaves_cores(state, request, one)), None)
            others = _rivals(state, request) if idle and chosen is None else []
        if idle and chosen is None:
            above = [other for other in others if other.priority >= request.priority]
            free = (one for rivals in (others, above) for one in idle if not _loses(state, request, one, rivals))
            chosen = next(free, None)
            if chosen is None and _loses(state, request, idle[0], above) >= _bears(state, request):
                state.look_again(_waits_until(state, request))
                return True
            chosen = chosen or idle[0]
        if chosen is not None and chosen.harm:  # better wait, where that is in time
            end, processor = min((state.free_ns[where] + ns, where) for where, ns in request.network.wholes())
            if end <= limit:
                state.block(processor)
                return True
        if chosen is not None:
            state.take(request, Choice(chosen.end_ns, request.network.units - 1, chosen.processor, None))
            return True
        choice = state.shortest(request)
        if choice.end_ns > limit:
            return False
        if state.idle(request, choice.processor):
            state.take(request, choice)
        elif request.deadline_ns is not None:
            state.block(choice.processor)
        return True

    def _late(self, state: Scheduler, request: Request) -> None:
        choice = state.kept(request, state.shortest(request))
        if choice is None:
            return
        if choice.end_ns <= request.due_ns:  # by the network that it was degraded to
            self._place(state, request)
            return
        options = _options(state, request, NEVER)
        idle = sorted(one for one in options if state.idle(request, one.processor) and not one.harm)
        if idle and not state.probes(request):
            state.take(request, Choice(idle[0].end_ns, request.network.units - 1, idle[0].processor, None))
        elif state.idle(request, choice.processor):
            state.take(request, choice)


def _options(state: Scheduler, request: Request, limit_ns: int, others: Sequence[_Other] = ()) -> list[_Option]:
    """Where the whole of a request can run; nothing once it has begun."""
    if request.unit:
        return []
    view = state.view(request)
    found = []
    for where, ns in request.network.wholes():
        harm, end = ns > view.spare_ns[where], view.free_ns[where] + ns
        if request.deadline_ns is None:
            risk, cost = _risked(state, request, where, end, others), 0
        else:
            risk = request.network.risk(ns, limit_ns - view.latest_ns[where])
            cost = ns * view.over[where].bit_count()
        found.append(_Option(harm, risk, cost, end, where))
    return found


def _bears(state: Scheduler, request: Request) -> float:
    """How many deadlines of another network a request waits for to be kept."""
    if request.deadline_ns is None:
        return 0.0 if request.due_ns > state.now_ns else NEVER
    gives_way = request.on_late == "drop" and not state.probes(request) and state.now_ns < _served_by(request)
    return GIVES_UP if gives_way else NEVER


def _served_by(request: Request) -> int:
    """Until when a network gives way of which nothing but drops has come: the patience of a single run."""
    return request.network.vain_ns + PATIENCE_NS if request.network.dropped else NEVER


def _waits_until(state: Scheduler, request: Request) -> int:
    """When one of the others counts no more, or the request can wait no longer, whichever is first."""
    latest = request.due_ns
    if request.deadline_ns is not None:
        latest = min(latest + 1 - state.alone(request.network).end_ns, _served_by(request))
    quiet = (state.active[other][1] + RECENT * deadline + 1 for other, deadline, _ in _others(state, request))
    return min(latest, *quiet)


def _others(state: Scheduler, request: Request) -> Iterator[tuple[Network, int, int]]:
    """The other networks that have been asked for lately, how long after a release each is due, and its priority."""
    for other, (deadline, at, priority) in state.active.items():
        if other is not request.network and at + RECENT * deadline >= state.now_ns:
            yield other, deadline, priority


def _leaves_cores(state: Scheduler, request: Request, option: _Option) -> bool:
    """Whether the others can make their deadlines side by side on the cores that this leaves."""
    mask = state.masks[option.processor]
    left = (state.every & ~mask).bit_count()
    for other, deadline, _ in _others(state, request):
        own = (state.masks[where] for where, ns in other.wholes() if ns <= deadline)
        left -= min((one.bit_count() for one in own if not one & mask), default=left + 1)
        if left < 0:
            return False
    return True


def _waits(state: Scheduler, request: Request, where: int, end_ns: int, deadline: int) -> int:
    """How long another waits for a run's cores: for its next border where it goes before that, else for its end."""
    border = request.network.border_ns.get(where, 0)
    if border and state.now_ns + deadline < request.due_ns:
        return border
    ns = request.network.expected(0, request.network.units - 1, where)
    return end_ns - ns + request.network.longest(ns) - state.now_ns


class _Other(NamedTuple):
    """Another network that has been asked for lately.

    Attributes:
        deadline_ns: how long after a release it is due.
        priority: at which it was asked for last.
        fastest: how long it takes on each processor that runs the whole of it, and the resources of that, the shortest
            first.
    """

    network: Network
    deadline_ns: int
    priority: int
    fastest: list[tuple[int, int]]

    def beside(self, mask: int) -> int:
        """How long it takes beside a run on these resources; ``NEVER`` where it cannot run beside that."""
        return next((ns for ns, own in self.fastest if not own & mask), NEVER)


def _rivals(state: Scheduler, request: Request) -> list[_Other]:
    return [
        _Other(network, deadline, priority, sorted((ns, state.masks[where]) for where, ns in network.wholes()))
        for network, deadline, priority in _others(state, request)
    ]


def _risked(state: Scheduler, request: Request, where: int, end_ns: int, others: Sequence[_Other]) -> int:
    """How many of the latest runs of the others would miss their deadlines beside this one, or behind it."""
    late = 0
    for other in others:
        if other.fastest:
            beside = other.network.risk(other.beside(state.masks[where]), other.deadline_ns)
            left_ns = other.deadline_ns - _waits(state, request, where, end_ns, other.deadline_ns)
            late += min(beside, other.network.risk(other.fastest[0][0], left_ns))
    return late


def _loses(state: Scheduler, request: Request, option: _Option, others: Sequence[_Other]) -> float:
    """How many runs of another network cannot make their deadlines beside this one, or behind it: 0 where all can."""
    lost = 0.0
    for other in others:
        deadline = other.deadline_ns
        if not other.fastest or other.fastest[0][0] > deadline:  # it makes its own nowhere: there is none to lose
            continue
        behind = other.fastest[0][0] + _waits(state, request, option.processor, option.end_ns, deadline)
        if min(other.beside(state.masks[option.processor]), behind) > deadline:
            ns = request.network.expected(0, request.network.units - 1, option.processor)
            lost = max(lost, ns / deadline)
    return lost


POLICIES: Final[dict[str, type[Policy]]] = {
    own.name: own for own in (Fifo, ShortestExpectedLatency, Heft, LeastSlack, EarliestDeadline, Planned)
}

DEFAULT: Final = EarliestDeadline.name
"""Where there is more to do than time it misses the fewest deadlines on phones' profiles, and it takes the fewest cores
that make a deadline."""


def policy(which: str | type[Policy] | Policy) -> Policy:
    """A policy by name, of a class, or as it is given. Raises UnknownNameError."""
    if isinstance(which, Policy):
        return which
    made = which if isinstance(which, type) and issubclass(which, Policy) else POLICIES.get(str(which))
    if made is None:
        raise UnknownNameError("policy", str(which), POLICIES)
    return made()
