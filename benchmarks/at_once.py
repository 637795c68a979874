"""What this machine measures before its plan of a network is good of which it has measured nothing.

The planner inside an agent knows other networks of this machine, which share nothing with the one that is new but its
softmax. That one is obtained as a session does: at once, then, once that plan is compiled, after a little measuring
each time, at last with all measured. Every plan is then replayed on the figures known at the end. Device time is what
was spent measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from fastapi.testclient import TestClient

from agent_sdk import Agent
from agent_sdk.engine import Executor, build_program
from agent_sdk.journey.services import THOROUGH_S
from agent_sdk.model import Model, read_model
from benchmarks.results import Found, Table, TableRow, verdict
from hope_schema import ModelGraph, Plan, Profile, merge
from hope_schema.cutgraph import cut_graph
from planner_api.embedded import create_app
from planner_api.planning import build_problem, simulate
from planner_api.planning.problem.cuts import cut_problem
from planner_api.settings import Settings

KNOWN = ("densenet121", "inception_v3", "nasnet_mobile", "pnasnet_mobile")
UNSEEN = "nasnet_large"
PROCESSORS = "ort@0,ort@1,ort@0-1"
STEPS = 6
"""Times that a little is measured, before all is."""
WAIT_S = 10.0
"""For the planner's better plan, which takes no time of the device's."""
NEAR, MOST_S = 1.05, 5.0


@dataclass(frozen=True)
class Stage:
    """A plan, and the seconds that the device had spent measuring when it was made."""

    device_s: float
    plan: Plan


def stages(unseen: Model, known: Sequence[str], processors: str) -> tuple[list[Stage], Profile]:
    """Plans of the network while more and more of it is measured, and what is known at the end."""
    with TemporaryDirectory() as folder:
        cache = Path(folder)
        with Agent(processors=processors, cache=cache, measuring_s=THOROUGH_S, wait_s=0.0) as agent:
            for name in known:
                measured_fully(agent, read_model(name))
        found, spent = [], 0.0
        with Agent(processors=processors, cache=cache, wait_s=WAIT_S) as agent:
            for step in range(STEPS + 1):
                obtained = agent.obtain(unseen, renew=step > 0, at_once=step == 0)
                if step and not obtained.profiled_signatures:
                    break
                spent += obtained.profiling_seconds
                assert obtained.plan is not None
                found.append(Stage(spent, obtained.plan))
                if step == 0:
                    Executor(build_program(obtained.plan, unseen, agent.device.processors), agent.device).close()
        with Agent(processors=processors, cache=cache, measuring_s=THOROUGH_S, wait_s=WAIT_S) as agent:
            seconds, plan = measured_fully(agent, unseen)
            found.append(Stage(spent + seconds, plan))
            soc = agent.soc
        settings = Settings(database_url=f"sqlite:///{cache / 'planner.sqlite'}", embedded=True)
        with TestClient(create_app(settings)) as client:
            profile = Profile.model_validate_json(
                client.get(f"/profiles/{quote(soc.name, safe='')}/{soc.frequency}").content
            )
    return found, profile


def measured_fully(agent: Agent, model: Model) -> tuple[float, Plan]:
    """Obtain a network's plan until nothing is left to measure; the seconds spent measuring, and the plan."""
    spent = 0.0
    while True:
        obtained = agent.obtain(model, renew=True)
        spent += obtained.profiling_seconds
        if not obtained.profiled_signatures:
            assert obtained.plan is not None
            return spent, obtained.plan


def replayed_us(plan: Plan, graph: ModelGraph, figures: Profile) -> float:
    """What a plan takes by these figures."""
    problem = build_problem(graph, figures, list(plan.processors), cut=True)
    cuts = plan.jobs[0].cuts
    if cuts:
        problem, graph = cut_problem(problem, cuts)[0], cut_graph(graph, cuts)
    index = {name: op for op, name in enumerate(problem.ops)}
    super_op = {op.id: index[one.id] for one in merge(graph) for op in one.ops}
    home = {
        super_op[op]: plan.processors.index(plan.step[step].processor)
        for step in plan.order
        for op in plan.step[step].ops
    }
    return simulate(problem, [home[op] for op in range(len(index))], list(home)).makespan_us


def device_time() -> Found:
    """Device time until there is a plan, and until one within 5 % of the final one."""
    unseen = read_model(UNSEEN)
    found, figures = stages(unseen, KNOWN, PROCESSORS)
    us = [replayed_us(stage.plan, unseen.graph, figures) for stage in found]
    near = min(stage.device_s for stage, one in zip(found, us, strict=True) if one <= NEAR * us[-1])
    measures = [
        verdict(f"{UNSEEN}, unseen: device time to the first plan, s", found[0].device_s, 0.0),
        verdict(f"{UNSEEN}, unseen: device time to a plan within 5 % of the final, s", near, MOST_S),
    ]
    rows: list[TableRow] = [
        [stage.device_s, len(used(stage.plan)), stage.plan.makespan_us / 1e3, one / 1e3, one / us[-1]]
        for stage, one in zip(found, us, strict=True)
    ]
    columns = ["device time, s", "processors", "planned, ms", "by the final figures, ms", "over the final plan"]
    return measures, [Table(f"Plans of {UNSEEN}, of which nothing was known, beside what was measured", columns, rows)]


def used(plan: Plan) -> set[str]:
    """The processors that a plan puts something on."""
    return {step.processor for step in plan.steps}
