"""A small fleet that looks like a real one: networks with branches, four kinds of processor, devices that report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel
from sqlalchemy import delete, insert, select

from hope_schema import (
    AliasTarget,
    Channel,
    DeviceDescription,
    DeviceReport,
    GroupSelector,
    Host,
    LatencyColumns,
    Link,
    MeasuredRun,
    Missing,
    MissingRequest,
    ModelGraph,
    NewModelVersion,
    Observations,
    Op,
    Overheads,
    PlanReply,
    Processor,
    ReleaseRequest,
    RolloutPolicy,
    Tensor,
    TransferColumns,
)
from planner_api.db.tables import DeviceRow, JobRow, PlanJobRow, PlanRow
from tests.planner.jobs_help import improve
from tests.planner.samples import Api, plan_request

FREQUENCY = "performance"
SOCS = ("kirin-990", "snapdragon-8-gen3", "exynos-2400")
FAILED = "dimensity-9300"
OVER_HOSTS = "over hosts"
"""Which plan of the classifier is over several hosts."""
RELEASED = ("detector", SOCS[1])
"""The plan that has a version which waits to be released, and 30 devices that measured the one before."""


def processor(runtime: str, number: int, core_class: str, place: str) -> Processor:
    """A processor with one thread on a resource of its own."""
    return Processor(
        id=f"{runtime}@{number}", runtime=runtime, version="1.22", threads=1, core_class=core_class,
        resources=(f"{core_class}{number}",), place=place,
    )  # fmt: skip


PROCESSORS = (
    processor("ort", 0, "big", "host/ort"),
    processor("ort", 4, "little", "host/ort"),
    processor("ov", 1, "big", "host/ov"),
    processor("cuda", 9, "gpu", "cuda:0"),
)


def branches(name: str, blocks: int, width: int = 4) -> ModelGraph:
    """A network of blocks, each of ``width`` branches of different work that meet in a Concat."""
    tensors, ops = [Tensor(name="image", shape=(1, 16, 32, 32), dtype="float32")], []

    def op(kind: str, inputs: Sequence[str], output: str, **attributes: int) -> str:
        tensors.append(Tensor(name=output, shape=(1, 16, 32, 32), dtype="float32"))
        ops.append(Op(type=kind, attributes={"model": name, **attributes}, inputs=tuple(inputs), outputs=(output,)))
        return output

    last = "image"
    for block in range(blocks):
        ends = []
        for branch in range(width):
            end = op("Conv", [last], f"block{block}/branch{branch}/conv", group=block % 3 + 1, size=branch + 1)
            if branch % 2:
                end = op("Relu", [end], f"block{block}/branch{branch}/relu")
                end = op("MaxPool", [end], f"block{block}/branch{branch}/pool", size=branch)
            ends.append(end)
        last = op("Concat", ends, f"block{block}/concat", axis=1, of=block % 3)
    last = op("Softmax", [last], "probabilities")
    return ModelGraph(name=name, tensors=tuple(tensors), ops=tuple(ops), inputs=("image",), outputs=(last,))


def long(name: str) -> str:
    """A name as long as the name of a model, an alias or a group may be, and almost as a SoC's."""
    return f"{name}-{'that-is-as-long-as-any-may-be-' * 4}"[:99] + "x"


def figure(*parts: str) -> float:
    """A number from 0 to 1 that depends on the parts alone."""
    return int.from_bytes(hashlib.blake2b("\n".join(parts).encode(), digest_size=4).digest(), "big") / 2**32


def latency(soc: str, signature: str, kind: str) -> float | None:
    """What an op takes, in microseconds; a GPU runs no Softmax."""
    if "gpu" in kind and signature.startswith("Softmax"):
        return None
    speed = {"big": 1.0, "little": 2.6, "gpu": 0.45}[kind.rpartition("x")[2]]
    work = 120.0 + 900.0 * figure(signature)
    return round(work * speed * (0.7 + 0.6 * figure(soc, signature, kind)), 2)


def question(graph: ModelGraph, soc: str) -> MissingRequest:
    """What the first device of a SoC asks before it measures."""
    return MissingRequest(
        model_hash=graph.model_hash, soc=soc, frequency=FREQUENCY, device_id=f"{soc}-phone-0", processors=PROCESSORS
    )


def upload(missing: Missing, soc: str, device_id: str, off: float) -> Observations:
    """What a device measures of what is missing, ``off`` times the honest figures."""
    latencies, transfers = missing.latencies, missing.transfers
    us = [latency(soc, row.signature, row.kind) for row in latencies]
    kinds = {one.kind for one in PROCESSORS}
    ways = (("host", "cuda:0"), ("cuda:0", "host"))
    return Observations(
        soc=soc,
        frequency=FREQUENCY,
        device_id=device_id,
        upload_id=f"{device_id}-{len(latencies)}",
        processors=PROCESSORS,
        channels=tuple(Channel(source=source, target=target, busy="copy-engine") for source, target in ways),
        latencies=LatencyColumns(
            signature=tuple(row.signature for row in latencies),
            kind=tuple(row.kind for row in latencies),
            us=tuple(None if one is None else one * off for one in us),
            spread_us=tuple(0.0 if one is None else one * 0.03 for one in us),
            count=(20,) * len(us),
        ),
        transfers=TransferColumns(
            tensor=tuple(row.tensor for row in transfers),
            source=tuple(row.source for row in transfers),
            target=tuple(row.target for row in transfers),
            us=tuple(40.0 if "cuda:0" in (row.source, row.target) else 9.0 for row in transfers),
            spread_us=(0.5,) * len(transfers),
            count=(20,) * len(transfers),
        ),
        overheads=Overheads(launch_us=dict.fromkeys(kinds, 4.0), end_us=dict.fromkeys(kinds, 1.0)),
    )


def settle(api: Api, called: Callable[[str], str] = str) -> dict[tuple[str, str], PlanReply]:
    """Fill a planner with the fleet, in which everything bears the name that ``called`` makes of its own.

    Returns its plans by (model, SoC), by their own names.
    """
    graphs = {"classifier": branches(called("classifier"), 3), "detector": branches(called("detector"), 3, 3)}
    found: dict[tuple[str, str], PlanReply] = {}
    for graph in graphs.values():
        assert api.post("/models", graph).status_code in (200, 201)
    for name in SOCS:
        soc = called(name)
        for graph in graphs.values():
            missing = api.post("/profiles/missing", question(graph, soc)).content
            for number in range(4):
                sent = upload(Missing.model_validate_json(missing), soc, f"{soc}-phone-{number}", 1.0 + number**3 / 100)
                assert api.post("/profiles", sent).status_code == 202
        for model, graph in graphs.items():
            reply = api.post("/plans", plan_request(graph, soc=soc, frequency=FREQUENCY)).json()
            found[model, name] = newest(api, reply["plan_id"])
    for graph in graphs.values():
        made = api.post(f"/names/{graph.name}/versions", NewModelVersion(model_hash=graph.model_hash))
        assert made.status_code == 201, made.text
        put(api, f"/names/{graph.name}/aliases/{called('production')}", AliasTarget(version=1))
    for (model, name), first in list(found.items()):
        improve(api, first.plan_id)
        found[model, name] = newest(api, first.plan_id)
        for number in range(30 if (model, name) == RELEASED else 10):
            report(api, f"{called(name)}-phone-{number}", called(name), found[model, name])
    about = DeviceDescription(name=called("Ada's phone"), labels={"channel": called("beta")})
    put(api, f"/devices/{called(SOCS[0])}-phone-0/description", about)
    early = GroupSelector(socs=tuple(map(called, SOCS[:2])), labels={"channel": called("beta")}, share=0.1)
    put(api, f"/groups/{called('early')}", early)
    for graph in graphs.values():
        put(api, f"/models/{graph.model_hash}/rollout", RolloutPolicy(rollout="held"))
    improve(api, found["classifier", SOCS[0]].plan_id)
    begun = api.post("/releases", ReleaseRequest(model=graphs["classifier"].model_hash, approval=True))
    assert begun.status_code == 201, begun.text
    assert api.client.post(f"/releases/{begun.json()['release_id']}/pause").status_code == 200
    improve(api, found[RELEASED].plan_id)
    found["classifier", OVER_HOSTS] = over_hosts(api, graphs["classifier"], called)
    api.await_(_age, api, called, graphs["detector"].model_hash)
    return found


def over_hosts(api: Api, graph: ModelGraph, called: Callable[[str], str]) -> PlanReply:
    """A plan of one SoC with two of another beside it behind one radio, of which a device has reported."""
    names = ("edge1", "edge2")
    hosts = tuple(Host(name=name, soc=called(SOCS[1]), frequency=FREQUENCY) for name in names)
    links = tuple(
        Link(source=source, target=target, fixed_us=20.0, us_per_byte=1e-3, busy="link-wlan0")
        for name in names
        for source, target in (("host", name), (name, "host"))
    )
    asked = plan_request(graph, soc=called(SOCS[0]), frequency=FREQUENCY, hosts=hosts, links=links)
    answer = api.post("/plans", asked)
    assert answer.status_code == 200, answer.text
    reply = newest(api, answer.json()["plan_id"])
    report(api, f"{called(SOCS[0])}-phone-0", called(SOCS[0]), reply)
    return reply


def newest(api: Api, plan_id: str) -> PlanReply:
    """A plan as it is served."""
    return PlanReply.model_validate_json(api.client.get(f"/plans/{plan_id}").content)


def put(api: Api, path: str, message: BaseModel) -> None:
    """Send a message with PUT."""
    answer = api.put(path, message)
    assert answer.status_code in (200, 204), answer.text


def report(api: Api, device_id: str, soc: str, reply: PlanReply) -> None:
    """Report as a device what a plan took: a third more on one SoC, about what was predicted elsewhere."""
    off = (1.34 if soc.startswith(SOCS[2]) else 1.02) * (0.93 + 0.14 * figure(device_id))
    run = MeasuredRun(
        plan_id=reply.plan_id, plan_version=reply.version, measured_us=reply.plan.makespan_us * off, runs=30
    )
    versions = {"hope-inference": "0.1.0", "onnxruntime": "1.22.0"}
    sent = DeviceReport(soc=soc, frequency=FREQUENCY, versions=versions, sent_at=datetime.now(UTC), measured=(run,))
    put(api, f"/devices/{device_id}/report", sent)


async def _age(api: Api, called: Callable[[str], str], model_hash: str) -> None:
    """Let some devices have been away, and one plan have failed."""
    now = datetime.now(UTC)
    async with api.app.planner.database.write() as session:
        away = [("old-phone-1", 5.0), ("old-phone-2", 70.0), ("old-phone-3", 400.0)]
        rows = [
            {
                "id": called(name),
                "soc": called(SOCS[0]),
                "enrolled_at": now,
                "last_seen_at": now - timedelta(hours=hours),
            }
            for name, hours in away
        ]
        await session.execute(insert(DeviceRow), [*rows, {"id": called("new-phone"), "soc": None, "enrolled_at": now}])
        values = {
            "id": "p-failed", "model_hash": model_hash, "jobs": [{"model_hash": model_hash}],
            "soc": called(FAILED), "frequency": FREQUENCY, "method": "auto", "objective": "makespan",
            "error": f"no processor supports op '{called('block0/concat')}'", "created_at": now,
        }  # fmt: skip
        await session.execute(insert(PlanRow).values(**values))
        serves = {"plan_id": values["id"], "position": 0, "model_hash": values["model_hash"]}
        await session.execute(insert(PlanJobRow).values(**serves))
        of_first = select(PlanRow.id).where(PlanRow.soc == called(SOCS[0]))
        await session.execute(delete(JobRow).where(JobRow.key.in_(of_first)))
