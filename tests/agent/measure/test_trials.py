"""What trials showed, kept for the networks that come after."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_sdk.machine.soc import read_soc
from agent_sdk.measure.trials import MAX_NETWORKS, MAX_SAMPLES, Trials
from agent_sdk.measure.truth import Sample
from hope_schema import LatencyColumns, Observations, Overheads, Processor

CORE = Processor(id="ort@0", runtime="ort", version="1", threads=1, core_class="big", resources=("cpu0",))
GANG = CORE.model_copy(update={"id": "ort@0-1", "threads": 2, "resources": ("cpu0", "cpu1")})
SOC = replace(read_soc(), name="soc", frequency="fixed")


def samples(launch_us: float, slowdown: float, kind: str = CORE.kind) -> list[Sample]:
    """Segments that take exactly what they are charged."""
    return [
        Sample(kind, launch_us + us * (1.0 + (slowdown - 1.0) * us / 60.0), us, 1, us / 60.0, steps_us=us)
        for us in range(20, 60)
    ]


def profiled(us: float = 40.0, **overheads: dict[str, float]) -> Observations:
    """What profiling measured of a core and a gang, and of an op on each."""
    kinds = (CORE.kind, GANG.kind)
    return Observations(
        soc="soc",
        frequency="fixed",
        processors=(CORE, GANG),
        latencies=LatencyColumns(signature=("op", "op"), kind=kinds, us=(us, us), spread_us=(0.0, 0.0), count=(1, 1)),
        overheads=Overheads(**overheads),
        device_id="device",
        upload_id="upload",
    )


def test_what_trials_told_stands_in_place_of_what_profiling_timed(tmp_path: Path) -> None:
    """For the kinds that they tell; the next start knows it, other kinds keep what was measured."""
    Trials(tmp_path, SOC).keep("0" * 64, samples(12.0, 1.8))
    measured = profiled(launch_us={CORE.kind: 0.0, GANG.kind: 30.0}, slowdown={CORE.kind: 1.0, GANG.kind: 1.1})
    told = Trials(tmp_path, SOC).instead(measured)
    assert told.overheads.launch_us == pytest.approx({CORE.kind: 12.0, GANG.kind: 30.0})
    assert told.overheads.slowdown == pytest.approx({CORE.kind: 1.8, GANG.kind: 1.1})
    assert told.overheads.spread == pytest.approx({CORE.kind: 0.0}, abs=1e-6)
    assert told == measured.model_copy(update={"overheads": told.overheads})
    assert Observations.model_validate_json(told.model_dump_json()) == told


def test_kinds_that_are_not_there_and_other_ops_are_not_told(tmp_path: Path) -> None:
    """A runtime of another version is another kind; ops ten times as long are slowed otherwise."""
    trials = Trials(tmp_path, SOC)
    measured = profiled(launch_us={CORE.kind: 3.0})
    assert trials.instead(measured) == measured
    trials.keep("0" * 64, samples(12.0, 1.8, kind="ort-0/1xbig"))
    assert trials.instead(measured) == measured
    trials.keep("0" * 64, samples(12.0, 1.8))
    assert trials.instead(measured) != measured
    longer = profiled(400.0, launch_us={CORE.kind: 3.0})
    assert trials.instead(longer) == longer


def test_a_network_speaks_once_and_for_its_machine(tmp_path: Path) -> None:
    """Its newest trials replace its earlier ones; those of another SoC or frequency are none of this one's."""
    trials = Trials(tmp_path, SOC)
    trials.keep("0" * 64, samples(5.0, 1.5))
    trials.keep("1" * 64, samples(7.0, 1.5))
    trials.keep("0" * 64, samples(12.0, 1.8))
    assert trials.of_others("1" * 64) == samples(12.0, 1.8)
    assert trials.of_others("0" * 64) == samples(7.0, 1.5)
    assert sorted(trials.of_others(), key=str) == sorted(samples(12.0, 1.8) + samples(7.0, 1.5), key=str)
    for other in (replace(SOC, name="another"), replace(SOC, frequency="half")):
        there = Trials(tmp_path, other)
        assert there.of_others() == []
        there.keep("0" * 64, samples(3.0, 1.2))
        assert there.of_others() == samples(3.0, 1.2)
    assert trials.of_others("1" * 64) == samples(12.0, 1.8)


def test_few_networks_are_kept(tmp_path: Path) -> None:
    """However many are tried, and whatever became of a file."""
    trials = Trials(tmp_path, SOC)
    for number in range(MAX_NETWORKS + 5):
        trials.keep(f"{number:064x}"[::-1], samples(1.0, 1.0)[:9])
    assert len(trials.of_others()) == 9 * MAX_NETWORKS
    next(tmp_path.glob("*.json")).write_text("{")
    assert len(trials.of_others()) == 9 * (MAX_NETWORKS - 1)


@pytest.mark.parametrize("wrong", [{"alone_us": 0.0}, {"alone_us": -1.0}, {"us": 1e300}, {"pressure": -1.0}])
def test_what_no_trial_can_have_shown_is_a_damaged_file(tmp_path: Path, wrong: dict[str, float]) -> None:
    """It counts as absent, and plans are made all the same."""
    trials, measured = Trials(tmp_path, SOC), profiled(launch_us={CORE.kind: 3.0})
    trials.keep("0" * 64, [replace(one, **wrong) for one in samples(12.0, 1.8)])
    assert trials.of_others() == []
    assert trials.instead(measured) == measured


def test_of_too_many_segments_the_last_are_kept(tmp_path: Path) -> None:
    """And trials that showed none leave those that were kept."""
    trials = Trials(tmp_path, SOC)
    trials.keep("0" * 64, samples(5.0, 1.5) + samples(12.0, 1.8) * (MAX_SAMPLES // 40) + samples(12.0, 1.8)[:16])
    trials.keep("0" * 64, [])
    assert len(trials.of_others()) == MAX_SAMPLES
    assert set(trials.of_others()) == set(samples(12.0, 1.8))
