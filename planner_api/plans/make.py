"""How a plan is made. Runs in a child; what it loads (HiGHS) no other process needs."""

import time
from collections.abc import Sequence

import numpy as np
from pydantic import ValidationError

from hope_schema import HOST, ModelGraph, Plan, PlannedHost, PlanReply, PlanRequest, Profile, merge
from hope_schema.cutgraph import cut_graph
from hope_schema.hosts import on_host
from hope_schema.plan import CUTTING
from planner_api.compression import loaded, zstd
from planner_api.errors import RefusedError
from planner_api.jobs.computing import Ask
from planner_api.models.figures import figures_of, union
from planner_api.planning import Budget, Machine, PlanningError, Problem, optimise, plan
from planner_api.planning import Job as Due
from planner_api.planning.bound import lower_bound
from planner_api.planning.compose import compose
from planner_api.plans.made import Made, PlanOrder
from planner_api.profiles.facts import Facts
from planner_api.profiles.predictions import Predictions

MOST_PRICES = 64_000_000
"""Prices of moves, one per tensor and pair of processors or the host, that a problem may have: 512 MB as an array."""

_predictions = Predictions()


def make(order: PlanOrder, ask: Ask) -> Made:
    """Make the plan that is asked for. Raises RefusedError: there is none, or the problem is too large."""
    request = PlanRequest.model_validate_json(order.request)
    graphs = _read(order.graphs)
    profiles = [loaded(Profile, body) for body in order.profiles]
    several = len(profiles) > 1 or any(len(profile.processors) > 1 for profile in profiles)
    parts = request.method in CUTTING and several
    started = time.perf_counter()
    try:
        profiles = [_predictions.complete(graphs, profile, Facts(ask), parts=parts) for profile in profiles]
        known = dict(zip(request.profiles, profiles, strict=True))
        profile = known[request.soc, request.frequency]
        hosts = {host.name: known[host.soc, host.frequency] for host in request.hosts}
        if hosts:
            profile = compose(profile, hosts, request.links)
        candidates = _candidates(request, profile)
        _refuse_too_many(graphs, profile, candidates)
        found = plan(
            graphs,
            profile,
            processors=candidates,
            method=request.method,
            jobs=[Due(job.release_us, job.deadline_us, job.weight, job.period_us) for job in request.jobs],
            objective=request.objective,
            budget_s=order.budget_s,
            after=_before(order.before),
        )
    except (PlanningError, ValidationError, ArithmeticError) as error:
        # Figures may add up to what no plan can say, whoever said them; that is no fault of the planner's.
        raise RefusedError(str(error)) from error
    planned = tuple(
        PlannedHost(name=host.name, soc=host.soc, frequency=host.frequency, profile_version=hosts[host.name].version)
        for host in request.hosts
    )
    found = found.model_copy(update={"hosts": planned, "links": request.links})
    return Made(
        plan=found.model_dump_json().encode(),
        makespan_us=found.makespan_us,
        lower_bound_us=found.lower_bound_us,
        gap=found.gap,
        found_by=found.method,
        solve_us=(time.perf_counter() - started) * 1e6,
        figures=_figures(found, graphs),
    )


def ready() -> None:
    """Load what plans need before the first job's clock runs."""
    tiny = Problem(
        machine=Machine.apart(("p", "q")),
        ops=("a", "b", "c"),
        latency_us=np.array([[3.0, 1.0], [1.0, 2.0], [2.0, 3.0]]),
        producer=np.array([-1, 0, 1, 2]),
        reads=((0,), (1,), (1, 2)),
        is_output=np.array([False, False, False, True]),
        transfer_us=np.ones((4, 3, 3)) - np.eye(3),
        tensors=("x", "a", "b", "c"),
    )
    optimise(tiny, "auto", Budget(rounds=1))
    lower_bound(tiny, Budget(rounds=1))


def _figures(found: Plan, graphs: Sequence[ModelGraph]) -> bytes | None:
    known = {graph.model_hash: graph for graph in graphs}
    cuts = dict.fromkeys((job.model_hash, job.cuts) for job in found.jobs if job.cuts)
    if not cuts:
        return None
    cut = [cut_graph(known[model_hash], own) for model_hash, own in cuts]
    figures = union(figures_of(graph, merge(graph)) for graph in cut)
    return zstd(figures.model_dump_json().encode())


def _read(graphs: tuple[bytes, ...]) -> tuple[ModelGraph, ...]:
    read = {graph: loaded(ModelGraph, graph) for graph in dict.fromkeys(graphs)}
    return tuple(read[graph] for graph in graphs)


def _before(reply: bytes) -> Plan | None:
    """The version before, if it can be read: an earlier release of the planner may have made it."""
    try:
        return loaded(PlanReply, reply).plan if reply else None
    except ValidationError:
        return None


def _candidates(request: PlanRequest, profile: Profile) -> tuple[str, ...] | None:
    """The processors of the device and its hosts that a request allows; None: all."""
    allowed = {HOST: request.processors, **{host.name: host.processors for host in request.hosts}}
    if not any(allowed.values()):
        return None
    found: list[str] = []
    for host, names in allowed.items():
        if names is None:
            found += [processor.id for processor in profile.processors if processor.host == host]
        else:
            found += [on_host(host, name) for name in names]
    return tuple(found)


def _refuse_too_many(graphs: tuple[ModelGraph, ...], profile: Profile, candidates: Sequence[str] | None) -> None:
    processors = len(profile.processors if candidates is None else candidates)
    prices = sum(len(graph.tensors) for graph in graphs) * (processors + 1) ** 2
    if prices > MOST_PRICES:
        ops = sum(len(graph.ops) for graph in graphs)
        what = f"a plan of {ops} ops on {processors} processors"
        raise RefusedError(f"{what} has {prices} prices of moves, at most {MOST_PRICES} are planned")
