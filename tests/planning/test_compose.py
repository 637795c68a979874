"""One machine of several hosts."""

from __future__ import annotations

import pytest

from hope_schema import Link, Overheads, Profile
from planner_api.planning import PlanningError
from planner_api.planning.compose import compose
from tests.planning.models import CPU, DIAMOND, FIGURES, GPU, network, profile

GRAPH = network(DIAMOND)
LINKS = tuple(
    Link(source=source, target=target, fixed_us=1.0, us_per_byte=0.001, busy="radio")
    for source, target in (("host", "edge"), ("edge", "host"))
)


def known(end_us: float = 0.0) -> Profile:
    """The profile of a CPU and a GPU."""
    costs = Overheads(launch_us={GPU.kind: 2.0}, end_us={CPU.kind: end_us})
    return profile(GRAPH, FIGURES, [("cpu", "gpu", (1, 8, 16, 16), 10.0)], overheads=costs)


def test_what_belongs_to_another_host_carries_its_name_and_its_figures() -> None:
    """Two hosts of one kind: nothing of one is taken for the other's, and each keeps its own end of segments."""
    both = compose(known(0.5), {"edge": known(3.0)}, LINKS)
    assert [one.id for one in both.processors] == ["cpu", "gpu", "edge:cpu", "edge:gpu"]
    assert both.processors[2].resources == ("edge:cpu0",)
    assert [one.place for one in both.processors] == ["host/cpu", "gpu", "edge:host/cpu", "edge:gpu"]
    assert len({one.kind for one in both.processors}) == 4
    assert ("edge:gpu", "edge:host") in {(way.source, way.target) for way in both.channels}
    assert ("host", "edge:host", "radio") in {(way.source, way.target, way.busy) for way in both.channels}
    costs, edge = both.overheads, both.processors[2:]
    assert costs.end_us == {CPU.kind: 0.5, edge[0].kind: 3.0}
    assert costs.launch_us == {GPU.kind: 2.0, edge[1].kind: 2.0}


def test_a_machine_that_cannot_be_made_is_refused() -> None:
    """A link to an unknown host, and a host whose name is a device's memory."""
    with pytest.raises(PlanningError, match="there is no host 'cloud'"):
        compose(known(), {"edge": known()}, [*LINKS, LINKS[0].model_copy(update={"target": "cloud"})])
    device = profile(GRAPH, {"cpu": FIGURES["cpu"]}, processors=(CPU, GPU.model_copy(update={"place": "cuda:0"})))
    ends = {"host": "host", "edge": "cuda"}
    links = [one.model_copy(update={"source": ends[one.source], "target": ends[one.target]}) for one in LINKS]
    with pytest.raises(PlanningError, match="cannot be called 'cuda'"):
        compose(device, {"cuda": known()}, links)
