"""Networks planned with cuts: the plan names the ops of the graph that its cuts make, at what was measured of parts."""

from __future__ import annotations

from itertools import combinations

import pytest

from hope_schema import (
    Channel,
    Cut,
    LatencyColumns,
    Link,
    ModelGraph,
    Objective,
    Op,
    PartColumns,
    Processor,
    Profile,
    SuperOp,
    Tensor,
    TensorType,
    merge,
)
from hope_schema.cutgraph import cut_graph, part_super_op
from hope_schema.cutting import Region
from planner_api.planning import Budget, Job, PlanningError, build_problem, optimise, plan
from planner_api.planning.bound.fluid import fluid
from planner_api.planning.compose import compose
from planner_api.planning.problem import parts
from planner_api.planning.problem.cuts import cut_problem

KINDS = ("ort-1/1xbig", "ort-1/1xlittle")


def network(count: int = 3) -> ModelGraph:
    """Convolutions of three rows with a rectifier each, one behind the other."""
    names = ["x", *(f"{kind}{k}" for k in range(count) for kind in ("conv", "relu"))]
    ops = []
    for k in range(count):
        before = "x" if k == 0 else f"relu{k - 1}"
        shape = TensorType(shape=(16, 16, 3, 3), dtype="float32")
        attributes = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
        ops.append(Op(type="Conv", attributes=attributes, inputs=(before,), outputs=(f"conv{k}",), parameters=(shape,)))
        ops.append(Op(type="Relu", inputs=(f"conv{k}",), outputs=(f"relu{k}",)))
    return ModelGraph(
        name="convolutions",
        tensors=tuple(Tensor(name=name, shape=(1, 16, 20, 20), dtype="float32") for name in names),
        ops=tuple(ops),
        inputs=("x",),
        outputs=(names[-1],),
    )


def profile(rows: dict[tuple[str, str], float]) -> Profile:
    """Two cores at places of their own, with a fast way between them."""
    processors = tuple(
        Processor(
            id=f"ort@{k}",
            runtime="ort",
            version="1",
            threads=1,
            core_class=kind.rpartition("x")[2],
            resources=(f"cpu{k}",),
            place=f"memory{k}",
        )
        for k, kind in enumerate(KINDS)
    )
    places = ("host", "memory0", "memory1")
    return Profile(
        soc="soc",
        frequency="max",
        version=1,
        processors=processors,
        channels=tuple(
            Channel(source=one, target=two, fixed_us=1.0, us_per_byte=1e-5)
            for one in places
            for two in places
            if one != two
        ),
        latencies=LatencyColumns(
            signature=tuple(signature for signature, _ in rows),
            kind=tuple(kind for _, kind in rows),
            us=tuple(rows.values()),
            spread_us=(0.0,) * len(rows),
            count=(5,) * len(rows),
        ),
    )


GRAPH = network()
WHOLE = {(op.signature, kind): us for op in merge(GRAPH) for kind, us in zip(KINDS, (1000.0, 1100.0), strict=True)}


def behind_a_radio(us_per_byte: float = 0.1) -> Profile:
    """A slow device, and an edge with one core that takes as long to be sent the input as to compute all of it."""
    links = [
        Link(source=source, target=target, fixed_us=10.0, us_per_byte=us_per_byte, busy="radio")
        for source, target in (("host", "edge"), ("edge", "host"))
    ]
    return compose(profile({key: 100 * us for key, us in WHOLE.items()}), {"edge": profile(WHOLE)}, links)


def test_one_host_behind_a_link_is_sent_bands_by_ours_as_well():
    """Nobody shares an op with its one core, yet what computes while more is sent is planned, above a bound of its own.

    Where the link is slower, that plan is where planning begins.
    """
    able = ("ort@0", "edge:ort@0")
    assert not build_problem(GRAPH, behind_a_radio(), able, cut=True).choices.axes
    tiled, ours = (
        plan(GRAPH, behind_a_radio(), processors=able, method=method, rounds=1) for method in ("vsm", "auto")
    )
    assert ours.makespan_us <= tiled.makespan_us < 0.9 * min(tiled.single_processor_us.values())
    assert "x" in {cut.op for cut in ours.jobs[0].cuts}
    assert max(ours.lower_bound_us, tiled.lower_bound_us) < tiled.makespan_us
    later = plan(GRAPH, behind_a_radio(0.15), processors=able, rounds=0, after=ours)
    assert later.jobs[0].cuts == ours.jobs[0].cuts
    assert later.makespan_us < min(later.single_processor_us.values())


@pytest.mark.parametrize("method", ["auto", "codl", "vsm"])
def test_a_plan_with_cuts_runs_the_ops_of_the_cut_graph(method: str):
    """Every op of the cut graph stands in one step, in an order in which it can run; two cores beat the better one.

    So does one behind a radio that is sent its input in bands.
    """
    known, able = (behind_a_radio(), ("ort@0", "edge:ort@0")) if method == "vsm" else (profile(WHOLE), None)
    found = plan(GRAPH, known, processors=able, method=method, rounds=30)
    (job,) = found.jobs
    assert job.cuts
    assert ("x" in {cut.op for cut in job.cuts}) == (method == "vsm")
    assert job.model_hash == GRAPH.model_hash
    cut = cut_graph(GRAPH, job.cuts)
    assert sorted(op for step in found.steps for op in step.ops) == sorted(cut.op)
    done = set(cut.inputs)
    for number in found.order:
        for name in found.step[number].ops:
            assert set(cut.op[name].inputs) <= done
            done |= set(cut.op[name].outputs)
    assert (
        found.lower_bound_us
        <= found.makespan_us
        < (0.9 if method == "vsm" else 0.7) * min(found.single_processor_us.values())
    )
    assert any("parts that were never measured" in sentence for sentence in found.filled)
    assert {move.tensor for move in found.transfers} <= set(cut.tensor)


def test_a_period_that_only_cuts_can_keep_is_planned():
    """A network is refused whose parts, one behind the other, take longer than its period; not one of long ops."""
    period_us = 2600.0
    assert len(merge(GRAPH)) * min(WHOLE.values()) > period_us
    found = plan(GRAPH, profile(WHOLE), jobs=[Job(period_us=period_us)], rounds=30)
    assert found.makespan_us <= period_us
    for method, period_us in (("auto", 100.0), ("grain", 2600.0)):
        with pytest.raises(PlanningError, match="takes at least"):
            plan(GRAPH, profile(WHOLE), jobs=[Job(period_us=period_us)], method=method, rounds=30)


@pytest.mark.parametrize("objective", ["makespan", "lateness"])
def test_several_networks_are_cut_each_in_its_own_way(objective: Objective):
    """Every op of each cut graph stands in one step of its job, moves are its tensors', and nothing begins too soon."""
    jobs = [Job(), Job(release_us=500.0, deadline_us=3000.0)]
    found = plan([GRAPH, GRAPH], profile(WHOLE), jobs=jobs, objective=objective, rounds=60)
    assert any(job.cuts for job in found.jobs)
    for number, job in enumerate(found.jobs):
        cut = cut_graph(GRAPH, job.cuts)
        steps = [step for step in found.steps if step.job == number]
        assert sorted(op for step in steps for op in step.ops) == sorted(cut.op)
        assert min(step.start_us for step in steps) >= job.release_us
        assert {move.tensor for move in found.transfers if move.job == number} <= set(cut.tensor)
        assert any(move.job == number for move in found.transfers)
    whole = plan([GRAPH, GRAPH], profile(WHOLE), jobs=jobs, objective=objective, method="grain")
    assert found.lower_bound_us <= found.makespan_us
    value = {"makespan": "makespan_us", "lateness": "lateness_us"}[objective]
    assert getattr(found, value) < getattr(whole, value)
    problem = build_problem([GRAPH, GRAPH], profile(WHOLE), jobs=jobs, objective=objective, cut=True)
    assert fluid(problem).us <= optimise(problem, "auto", Budget(rounds=60)).solution.schedule.value_us


def test_what_is_predicted_of_parts_counts():
    """Ops whose halves are predicted to take as long as they do stay whole; what was measured of halves goes before."""
    slow = PartColumns(
        signature=tuple(signature for signature, _ in WHOLE for _ in (1, 2)),
        kind=tuple(kind for _, kind in WHOLE for _ in (1, 2)),
        axis=(1, 2) * len(WHOLE),
        fixed=(1.0,) * 2 * len(WHOLE),
    )
    assert not plan(GRAPH, profile(WHOLE).model_copy(update={"parts": slow}), rounds=5).jobs[0].cuts


def test_what_was_measured_of_parts_counts():
    """A half that takes as long as the whole op is not worth cutting; other methods cut nothing."""
    slow = dict(WHOLE)
    for op in merge(GRAPH):
        for axis, extent in ((1, 16), (2, 20)):
            borders = [round(k / 10 * extent) for k in range(11)]
            parts = [
                Region.along(axis, start, stop) for start, stop in combinations(borders, 2) if stop - start < extent
            ]
            slow |= {(part_super_op(op, part).signature, kind): 1000.0 for part in parts for kind in KINDS}
    assert not plan(GRAPH, profile(slow), rounds=5).jobs[0].cuts
    assert not plan(GRAPH, profile(WHOLE), method="ilp", rounds=5).jobs[0].cuts


def test_slices_and_joins_take_what_was_measured():
    """Those along rows take their own figure, where it is not known the rule's; those along channels are views."""
    op = merge(GRAPH)[1].id
    for axis, extent in ((2, 20), (1, 16)):
        cuts = [Cut(op=op, axes=(axis,), at=((extent // 2,),))]
        glue = [one for one in merge(cut_graph(GRAPH, cuts)) if one.ops[0].type in ("Slice", "Concat")]
        assert glue
        told = {(one.signature, KINDS[0]): 70.0 + len(one.signature) for one in glue}
        without, found = (
            cut_problem(build_problem(GRAPH, profile(WHOLE | more), cut=True), cuts)[0] for more in ({}, told)
        )
        for one in glue:
            rule, us = (problem.latency_us[problem.ops.index(one.id)] for problem in (without, found))
            assert rule.any() == (axis == 2)
            assert us.tolist() == [told[one.signature, KINDS[0]] if axis == 2 else 0.0, rule[1]]


def test_what_reads_of_unknown_shapes_takes_is_the_rules():
    """The search asks before it knows what is read, also where slices and joins were measured."""
    cuts = [Cut(op=merge(GRAPH)[1].id, axes=(2,), at=((10,),))]
    glue = [one for one in merge(cut_graph(GRAPH, cuts)) if one.ops[0].type in ("Slice", "Concat")]
    told = {(one.signature, KINDS[0]): 70.0 for one in glue}
    without, found = (build_problem(GRAPH, profile(WHOLE | more), cut=True).cutter for more in ({}, told))
    name, shape = next(
        (name, tensor.type.shape) for name, tensor in GRAPH.tensor.items() if len(tensor.type.shape) == 4
    )
    assert found.glue_us(name, shape, (2,), ()).tolist() == without.glue_us(name, shape, (2,), ()).tolist()


def test_parts_of_ops_alike_are_looked_up_once(monkeypatch: pytest.MonkeyPatch):
    """A part's signature takes a while to work out: in a network of equal cells the search would wait for seconds."""
    asked: list[tuple[str, Region]] = []

    def counted(op: SuperOp, region: Region) -> SuperOp:
        asked.append((op.signature, region))
        return part_super_op(op, region)

    monkeypatch.setattr(parts, "part_super_op", counted)
    half = part_super_op(merge(GRAPH)[0], Region.along(1, 0, 8)).signature
    plan(GRAPH, profile(WHOLE | {(half, KINDS[0]): 500.0}), rounds=5)
    assert asked
    assert len(asked) == len(set(asked))
