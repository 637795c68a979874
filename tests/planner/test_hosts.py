"""Plans over several hosts and of networks with periods, asked for over HTTP."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import update

from hope_schema import (
    HOST,
    Host,
    Job,
    LatencyColumns,
    Link,
    Missing,
    ModelGraph,
    Op,
    PlanRequest,
    Profile,
    Tensor,
    TensorType,
    TransferColumns,
    merge,
)
from planner_api.compression import zstd
from planner_api.db.tables import JobRow
from planner_api.jobs.kind import JobError, Lease
from planner_api.jobs.wanted import Wanted, now, put
from planner_api.models.figures import figures_of
from planner_api.planning.compose import compose
from planner_api.planning.problem.build import build_problem
from planner_api.plans import repository
from planner_api.plans.key import keyed, normalised
from planner_api.plans.solve import FIRST, FirstPlan
from planner_api.profiles.jobs import FOLD, key_of
from planner_api.profiles.known import Known, differ
from tests.planner.samples import (
    FREQUENCY,
    PROCESSORS,
    SOC,
    Api,
    chain,
    measure,
    missing_request,
    plan_request,
    problem,
)

pytestmark = pytest.mark.above_databases

GRAPH = chain()

LINKS = tuple(
    Link(source=source, target=target, fixed_us=0.1, us_per_byte=1e-5, busy="radio")
    for source, target in (("host", "edge"), ("edge", "host"))
)
EDGE = Host(name="edge", soc="server", frequency=FREQUENCY)


def learn_server(api: Api) -> None:
    """Let a server upload what it measured of the network: half a microsecond for every op."""
    asked = missing_request(GRAPH, "server-1").model_copy(update={"soc": "server"})
    missing = Missing.model_validate_json(api.post("/profiles/missing", asked).content)
    upload = measure(missing, "server-1", cost=lambda _signature, _kind: 0.5, soc="server")
    assert api.post("/profiles", upload).status_code == 202


def test_in_which_order_jobs_and_hosts_stand_makes_no_difference() -> None:
    """Every order of jobs, hosts, links and processors is one key; so are about equal links, but not different ones."""
    jobs = (
        Job(model_hash=GRAPH.model_hash, release_us=5.0),
        Job(model_hash=GRAPH.model_hash, period_us=100.0),
        Job(model_hash="0" * 64),
    )
    hosts = (EDGE, EDGE.model_copy(update={"name": "cloud"}))
    links = tuple(
        Link(source=source, target=target, fixed_us=100.0, us_per_byte=0.1, busy="radio")
        for source, target in itertools.permutations(("host", "edge", "cloud"), 2)
    )
    keys = {
        keyed(plan_request(GRAPH, jobs=order, hosts=hosts[::way], links=links[::way], processors=("a", "b")[::way]))[1]
        for order in itertools.permutations(jobs)
        for way in (1, -1)
    }
    assert len(keys) == 1

    def moved(by: float) -> str:
        changed = tuple(link.model_copy(update={"us_per_byte": link.us_per_byte * by}) for link in links)
        return keyed(plan_request(GRAPH, jobs=jobs, hosts=hosts, links=changed, processors=("a", "b")))[1]

    assert {moved(1.02), moved(0.98)} == keys
    assert not {moved(1.6), moved(0.5)} & keys


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jobs": (Job(model_hash=GRAPH.model_hash, period_us=1.0),)}, "a period of 1 µs takes at least"),
        ({"jobs": [Job(model_hash=GRAPH.model_hash).model_dump()] * 65}, "length <= 64"),
        ({"jobs": [{"model_hash": GRAPH.model_hash, "period_us": us} for us in (1e3, 999.0)]}, "256 runs that"),
        ({"hosts": [EDGE.model_dump()] * 2}, "named twice"),
        ({"links": [LINKS[0].model_dump() | {"target": "cloud"}]}, "there is no host 'cloud'"),
        ({"links": [LINKS[0].model_dump()]}, "no link leads from host 'edge'"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_sentence(api: Api, change: dict[str, Any], words: str) -> None:
    """Jobs, periods, hosts and links that make no plan: 422, and the sentence says why."""
    api.learn(GRAPH)
    learn_server(api)
    body = PlanRequest.model_construct(
        **{**dict(plan_request(GRAPH, hosts=(EDGE,), links=LINKS)), **change}
    ).model_dump_json(warnings=False)
    answer = api.post("/plans", body.encode())
    assert answer.status_code == 422
    assert words in answer.text


def test_a_plan_over_hosts_rests_on_every_profile(api: Api) -> None:
    """The profile of a host is missing: 404 that names it. With it the plan says which hosts, links, versions."""
    api.learn(GRAPH)
    request = plan_request(GRAPH, hosts=(EDGE,), links=LINKS)
    assert "server" in problem(api.post("/plans", request), 404, "profile-unknown").detail
    learn_server(api)
    plan = api.plan(GRAPH, hosts=(EDGE,), links=LINKS).plan
    assert [(host.name, host.soc, host.profile_version) for host in plan.hosts] == [("edge", "server", 1)]
    assert {link.busy for link in plan.links} == {"radio"}
    assert any(name.startswith("edge:") for name in plan.processors)
    only = api.plan(GRAPH, hosts=(EDGE.model_copy(update={"processors": plan.processors[:1]}),), links=LINKS).plan
    assert sum(name.startswith("edge:") for name in only.processors) == 1


@pytest.mark.parametrize("us", [1.05, 50.0])
def test_plans_are_compared_by_what_tensors_take_on_their_way_to_a_host(us: float) -> None:
    """Between two hosts a tensor passes the plain memory of both, which it never does on the device alone."""
    sizes = {"x": 8, "y": 4, "z": 8}
    tensors = tuple(Tensor(name=name, shape=(1, size, 4, 4), dtype="float32") for name, size in sizes.items())
    ops = tuple(Op(type="Conv", inputs=(read,), outputs=(made,)) for read, made in ("xy", "yz"))
    graph = ModelGraph(name="net", tensors=tensors, ops=ops, inputs=("x",), outputs=("z",))
    signatures, here = [op.signature for op in merge(graph)], PROCESSORS[0]

    def measured(us: float) -> Profile:
        rows, inner = len(signatures), TensorType(shape=(1, 4, 4, 4), dtype="float32")
        return Profile(
            soc=SOC, frequency=FREQUENCY, version=1, processors=(here,),
            latencies=LatencyColumns(
                signature=tuple(signatures), kind=(here.kind,) * rows, us=(5.0,) * rows, spread_us=(0.0,) * rows,
                count=(1,) * rows,
            ),
            transfers=TransferColumns(
                tensor=(inner,), source=(here.place,), target=(HOST,), us=(us,), spread_us=(0.0,), count=(1,)
            ),
        )  # fmt: skip

    versions = measured(1.0), measured(us)
    costs = [build_problem(graph, compose(one, {"edge": measured(1.0)}, LINKS)).transfer_us for one in versions]
    old, new = (Known.read(zstd(one.model_dump_json().encode())) for one in versions)
    moves = bool(abs(costs[1] - costs[0]).max() > 0.1)
    assert differ(old, new, figures_of(graph, merge(graph)), None, 0.1) == moves == (us > 2.0)


def test_every_profile_that_is_missing_is_named(api: Api) -> None:
    """The device's profile and a host's are missing: both who asks and the job say so."""
    assert api.post("/models", GRAPH).status_code == 201
    request, wanted = keyed(plan_request(GRAPH, hosts=(EDGE,), links=LINKS))
    said = problem(api.post("/plans", request), 404, "profile-unknown").detail
    planner = api.app.planner

    async def load() -> None:
        async with planner.database.write() as session:
            await repository.insert(session, wanted, request, profile_versions=(0, 0))
        await FirstPlan(planner.database, planner.settings).load(Lease(1, 1, FIRST, wanted))

    with pytest.raises(JobError) as caught:
        api.await_(load)
    for words in (said, str(caught.value)):
        assert all(f"SoC '{soc}' at frequency '{FREQUENCY}'" in words for soc in (SOC, "server"))


def test_a_first_plan_waits_for_every_profile_that_it_rests_on(api: Api) -> None:
    """Both profiles are new, and the device's takes longer to be folded: the plan is made once both are there."""
    api.learn(GRAPH)
    learn_server(api)

    async def lease(owner: str | None) -> None:
        async with api.app.planner.database.write() as session:
            fold = JobRow.kind == FOLD, JobRow.key == key_of(SOC, FREQUENCY)
            held = {"lease_owner": owner, "lease_until": now(session, 60.0)}
            await session.execute(update(JobRow).where(*fold).values(held))
            await put(session, Wanted(FOLD, key_of(SOC, FREQUENCY)))

    api.await_(lease, "elsewhere")
    with ThreadPoolExecutor() as devices:
        asking = devices.submit(api.plan, GRAPH, hosts=(EDGE,), links=LINKS)
        time.sleep(1.0)
        api.await_(lease, None)
        assert {host.soc for host in asking.result().plan.hosts} == {"server"}


def test_where_links_have_changed_planning_begins_with_the_plan_before(api: Api) -> None:
    """Of a network over the same hosts the latest plan is taken, whatever its links; never one over other hosts."""
    api.learn(GRAPH)
    learn_server(api)
    alone = api.plan(GRAPH)
    first = api.plan(GRAPH, hosts=(EDGE,), links=LINKS)

    async def near(request: PlanRequest) -> str | None:
        async with api.app.planner.database.read() as session:
            found = await repository.find_near(session, normalised(request))
            return None if found is None else found.plan_id

    slower = tuple(link.model_copy(update={"us_per_byte": link.us_per_byte * 4}) for link in LINKS)
    assert api.await_(near, plan_request(GRAPH, hosts=(EDGE,), links=slower)) == first.plan_id != alone.plan_id
    other = tuple(link.model_copy(update={"source": "cloud"}) if link.source == "edge" else
                  link.model_copy(update={"target": "cloud"}) for link in LINKS)  # fmt: skip
    cloud = EDGE.model_copy(update={"name": "cloud"})
    assert api.await_(near, plan_request(GRAPH, hosts=(cloud,), links=other)) is None
    assert api.await_(near, plan_request(GRAPH)) is None


def test_a_network_with_a_period_is_planned_for_its_hyperperiod(api: Api) -> None:
    """Periods of 1 and 2 ms are three runs; each starts no sooner than its inputs, unless throughput counts."""
    api.learn(GRAPH)
    jobs = tuple(Job(model_hash=GRAPH.model_hash, period_us=us) for us in (1000.0, 2000.0))
    plan = api.plan(GRAPH, jobs=jobs).plan
    assert [(job.period_us, job.run, job.release_us) for job in plan.jobs] == [
        (1000.0, 0, 0.0),
        (1000.0, 1, 1000.0),
        (2000.0, 0, 0.0),
    ]
    assert min(step.start_us for step in plan.steps if step.job == 1) >= 1000.0
    together = api.plan(GRAPH, jobs=jobs, objective="throughput").plan
    assert together.objective == "throughput"
    assert together.makespan_us < 1000.0
