"""Plan → program: what is refused, and that what is built keeps every order the plan asks for."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_sdk.engine import Copy, Device, Program, ProgramSegment, Work, build_program
from agent_sdk.engine.memory import plan_memory
from agent_sdk.engine.program import Event
from agent_sdk.errors import IllegalPlanError, PlanMismatchError
from agent_sdk.model import Model
from hope_schema import Cut, Plan, merge
from tests.agent.engine.generate import dealt_plan, plan_of, random_legal_plan, random_model, random_order, whole_plan
from tests.agent.engine.simulated import four_processors


@pytest.fixture(autouse=True)
def lanes() -> None:
    """No lane is run here."""


@pytest.fixture(scope="module")
def model() -> Model:
    """A random model with branches."""
    return random_model(random.Random(3), 14)


def program_of(plan: Plan, model: Model) -> Program:
    """Build for the four simulated processors."""
    return build_program(plan, model, {p.id: p for p in four_processors()})


Where = tuple[int, int]
"""Lane and position of a piece of work."""


def at(work: Work) -> Where:
    """Where it stands."""
    return work.lane, work.position


def happens_before(program: Program) -> nx.DiGraph:
    """The order that lanes and waits enforce on work, closed under transitivity: an oracle of its own."""
    graph = nx.DiGraph()
    graph.add_nodes_from(map(at, program.work))
    for row in program.by_lane:
        graph.add_edges_from((at(a), at(b)) for a, b in pairwise(row))
    for work in program.work:
        for wait in work.waits:
            graph.add_edge((wait.lane, wait.count - 1), at(work))
    return nx.transitive_closure_dag(graph)


def touched(program: Program, work: Work) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What a piece of work reads and what it writes: tensors and their places."""
    if isinstance(work, Copy):
        return [(work.move.tensor, work.move.source)], [(work.move.tensor, work.move.target)]
    assert isinstance(work, ProgramSegment)
    reads, writes = (
        [(name, program.place_of(work, name)) for name in names]
        for names in (work.segment.inputs, work.segment.outputs)
    )
    return reads, writes


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32), ops=st.integers(1, 24))
def test_order_and_memory_hold_for_every_legal_plan(seed: int, ops: int) -> None:
    """Waits order every reader after its writer and exclude shared resources; slots never hold two live tensors."""
    rng = random.Random(seed)
    model = random_model(rng, ops)
    plan = random_legal_plan(model, four_processors(), rng)
    program = program_of(plan, model)
    order = happens_before(program)
    made = {}
    for work in program.work:
        reads, writes = touched(program, work)
        for name, place in reads:
            assert (name, place) in made or name in model.graph.inputs
            if (name, place) in made:
                assert order.has_edge(made[name, place], at(work))
        for key in writes:
            assert key not in made, "made or brought twice"
            made[key] = at(work)
        # What it knows to be finished is exactly what the oracle knows, or less.
        for lane, count in enumerate(work.finished):
            for earlier in program.by_lane[lane][:count]:
                assert order.has_edge(at(earlier), at(work))
    place = {step: index for index, step in enumerate(plan.order)}
    for a, b in combinations(program.segments, 2):
        shared = set(program.processors[a.processor].spec.resources) & set(
            program.processors[b.processor].spec.resources
        )
        if shared:
            assert order.has_edge(at(a), at(b))
            assert place[a.steps[-1]] < place[b.steps[0]]
    assert sorted(op for s in program.segments for op in s.ops) == sorted(set(model.graph.op) - set(program.dead))
    _check_cuts(program)
    _check_memory(program, order)


def _check_cuts(program: Program) -> None:
    """Work is cut only where it waits, where others wait for it, at moves, or where its lane serves another."""
    awaited = {(wait.lane, wait.count) for work in program.work for wait in work.waits}
    for row in program.by_lane:
        for before, after in pairwise(row):
            assert (
                after.processor != before.processor
                or isinstance(before, Copy)
                or isinstance(after, Copy)
                or after.waits
                or (before.lane, before.position + 1) in awaited
            ), "a cut that nobody needs"


def _check_memory(program: Program, order: nx.DiGraph) -> None:
    """Everyone who touches a tensor comes before everyone who touches the next one in the same slot."""
    types = [{name: program.graph.tensor[name].type for names in touched(program, w) for name, _ in names}
             for w in program.work]  # fmt: skip
    memory = plan_memory(program, types)
    touches: dict[tuple[int, str], set[Where]] = {}
    writer: dict[tuple[int, str], Where] = {}
    for work in program.work:
        reads, writes = touched(program, work)
        for name, place in (*reads, *writes):
            touches.setdefault((id(memory.spot[name, place].slot), name), set()).add(at(work))
        for name, place in writes:
            writer[id(memory.spot[name, place].slot), name] = at(work)
    for (name, where), spot in memory.spot.items():
        assert spot.kind == program.graph.tensor[name].type
        assert name in spot.slot.tensors
        assert program.processors[spot.slot.processor].place.memory == where.partition("/")[0]
    for slot in memory.slots:
        assert slot.kind.bytes == max(program.graph.tensor[name].bytes for name in slot.tensors)
        for first, second in pairwise(slot.tensors):
            after = writer[id(slot), second]
            assert all(order.has_edge(one, after) for one in touches[id(slot), first])
    for name in program.model.held:
        if name in program.graph.producer:
            assert memory.spot[name, program.memory_of(name)].slot.tensors[-1] == name


def test_a_single_core_may_move_among_its_equals(device: Device, model: Model) -> None:
    """A whole model on one core may run on any of that kind; in a plan with others every thread keeps its own."""
    alone = build_program(whole_plan(model, "ort@0"), model, device.processors)
    kind = device.processors["ort@0"].spec.kind
    equals = {core for p in device.processors.values() if p.spec.kind == kind for core in p.caller_cores}
    assert alone.seats == (equals,)
    gang = next(name for name, processor in device.processors.items() if not processor.on_caller_thread)
    for other in (dealt_plan(model, ["ort@0", gang]), whole_plan(model, gang)):
        program = build_program(other, model, device.processors)
        first = [device.processors[row[0].processor].caller_cores for row in program.by_lane]
        assert [*program.seats] == first


def test_a_plan_for_another_model_is_refused(model: Model) -> None:
    """The model hash decides, and the message says what to do."""
    other = random_model(random.Random(4), 5)
    with pytest.raises(PlanMismatchError, match="ask the planner"):
        program_of(whole_plan(other, "a"), model)


def test_a_plan_for_a_processor_this_device_lacks_is_refused(model: Model) -> None:
    """The message names the processor and what there is instead."""
    with pytest.raises(PlanMismatchError, match=r"'npu'.*lacks.*a, ab, b, c"):
        program_of(whole_plan(model, "npu"), model)


def test_a_processor_without_steps_may_be_missing(model: Model) -> None:
    """A plan that lists a processor it does not use can still be carried out."""
    plan = whole_plan(model, "a").model_copy(update={"processors": ("a", "npu")})
    assert program_of(plan, model).processors_used == ("a",)


def test_an_order_that_is_not_topological_is_refused(model: Model) -> None:
    """Reversed, every plan with a dependency would deadlock."""
    plan = whole_plan(model, "a")
    with pytest.raises(IllegalPlanError, match="which makes it"):
        program_of(plan.model_copy(update={"order": plan.order[::-1]}), model)


def test_a_missing_op_is_refused(model: Model) -> None:
    """Leaving out the step that makes an output is found before anything is compiled."""
    plan = whole_plan(model, "a")
    end = next(s for s in plan.steps if model.graph.producer[model.graph.outputs[0]] in s.ops)
    rest = tuple(s for s in plan.steps if s is not end)
    broken = plan.model_copy(update={"steps": rest, "order": tuple(i for i in plan.order if i != end.id)})
    with pytest.raises(IllegalPlanError, match="no step of the plan runs op"):
        program_of(broken, model)


def test_an_unknown_op_is_refused(model: Model) -> None:
    """A step that names an op the model lacks."""
    plan = whole_plan(model, "a")
    step = plan.steps[0].model_copy(update={"ops": (*plan.steps[0].ops, "nonsense")})
    with pytest.raises(IllegalPlanError, match="'nonsense'"):
        program_of(plan.model_copy(update={"steps": (step, *plan.steps[1:])}), model)


def test_cuts_that_cannot_be_made_are_refused(model: Model) -> None:
    """A plan that cuts an op beyond its end is none, and the message says why."""
    plan = whole_plan(model, "a")
    job = plan.jobs[0].model_copy(update={"cuts": (Cut(op=plan.steps[0].ops[-1], axes=(1,), at=((10_000,),)),)})
    with pytest.raises(IllegalPlanError, match="a part is empty"):
        program_of(plan.model_copy(update={"jobs": (job,)}), model)


def test_a_step_that_is_not_convex_is_refused() -> None:
    """Two ops in one step with a third between them cannot be launched as one."""
    model = next(m for m in (random_model(random.Random(s), 12) for s in range(50)) if len(merge(m.graph)) > 4)
    plan = whole_plan(model, "a")
    chain = next(
        (a, b, c)
        for b in plan.steps
        for a in plan.steps
        for c in plan.steps
        if _feeds(model, a.ops, b.ops) and _feeds(model, b.ops, c.ops)
    )
    a, _, c = chain
    fat = a.model_copy(update={"ops": (*a.ops, *c.ops)})
    steps = tuple(fat if s is a else s for s in plan.steps if s is not c)
    with pytest.raises(IllegalPlanError):
        program_of(plan.model_copy(update={"steps": steps, "order": tuple(i for i in plan.order if i != c.id)}), model)


def _feeds(model: Model, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    made = {name for op in before for name in model.graph.op[op].outputs}
    return any(name in made for op in after for name in model.graph.op[op].inputs)


def test_one_processor_is_one_segment(model: Model) -> None:
    """Nobody waits, so nothing is cut."""
    program = program_of(whole_plan(model, "ab"), model)
    assert len(program.segments) == 1
    assert program.segments[0].waits == ()
    assert program.segments[0].segment.exports == frozenset(model.graph.outputs)


def test_processors_that_share_a_leading_resource_share_a_thread(model: Model) -> None:
    """A plan that changes between a core and a gang led by it never changes thread."""
    super_ops = merge(model.graph)
    order = random_order(super_ops, random.Random(1))
    where = {index: ("a", "ab")[place % 2] for place, index in enumerate(order)}
    program = program_of(plan_of(model, super_ops, order, where, ["a", "ab"]), model)
    assert program.lanes == ("x",)
    assert all(not s.waits for s in program.segments)
    assert len(program.segments) > 1


def test_a_core_is_lent_to_the_gang_that_ran_on_it_meanwhile(model: Model) -> None:
    """Each piece of work names whoever else last used its queue's resource since that queue was at work, if anybody."""
    for seed in range(20):
        program = program_of(random_legal_plan(model, four_processors(), random.Random(seed)), model)
        for number, work in enumerate(program.work):
            resource = program.lanes[work.lane]
            users = [one for one in program.work[:number] if resource in one.resources]
            lent = users[-1] if users and users[-1].lane != work.lane else None
            assert work.lent == (None if lent is None else Event(lent.lane, lent.position + 1))
