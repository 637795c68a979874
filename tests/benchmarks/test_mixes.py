"""The benchmark of several networks at once: what it makes of phones, and of a mix on this machine."""

from __future__ import annotations

import json
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_sdk.errors import DroppedError
from agent_sdk.scheduling.mixes import Mix, Stream, read_mix
from agent_sdk.scheduling.network import NEVER
from agent_sdk.scheduling.outcome import Ended
from agent_sdk.scheduling.policies import policy
from benchmarks.mixes import __main__ as mixes
from benchmarks.mixes import capacity, compared, phones, plain
from benchmarks.mixes.units import FEWEST, units, without_small
from benchmarks.profiles import find
from benchmarks.results import Found, Measure
from tests.agent.scheduling.simulation import simulate
from tests.benchmarks.test_phones import write


def test_phones_are_replayed_under_every_policy(tmp_path: Path) -> None:
    """Of any phone's profiles, least slack on both processors misses no more than each on its best one in order."""
    for model, factor in (("one", 1.0), ("two", 1.3), ("three", 0.8)):
        write(tmp_path, "nokia", model, factor)
    table, found = phones.replay(find(tmp_path))
    assert len(table.rows) == len(phones.LOADS)
    by_load = found["nokia"]
    assert all(one["least_slack"] <= one["fifo"] for one in by_load.values())
    assert by_load[max(phones.LOADS)]["fifo"] > by_load[min(phones.LOADS)]["fifo"]


def test_units_are_those_of_the_paper() -> None:
    """The first two of three ops, which both processors run, and the third, which one does; all three merge on that.

    A branch of equal ops is one unit with them although they are not connected, and what comes back is another one.
    """
    both, one = frozenset({0, 1}), frozenset({0})
    assert units([both, both, one], [(), (0,), (1,)]) == [(0, 1), (2,)]
    assert units([both, one, both, both, both], [(), (0,), (0,), (1, 2), ()]) == [(0, 2, 4), (1,), (3,)]
    fewest = [*[both] * FEWEST, one, *[both] * (FEWEST - 1)]
    chain = [(op - 1,) if op else () for op in range(len(fewest))]
    assert without_small(fewest, chain, [1]) == [*[both] * FEWEST, *[one] * FEWEST]


def test_a_phone_whose_gpu_lacks_an_op_runs_in_units(tmp_path: Path) -> None:
    """The first three ops are too few for the GPU, which runs all behind the one that it lacks, its input moved; the
    CPU runs either unit, and both merged. Decisions use both.
    """
    write(tmp_path, "nokia", "one", 1.0)
    [profile] = find(tmp_path)
    names = [name for name, _ in phones.clusters(profile)]
    made = phones.network(profile, names, 1)
    cpu, gpu = names.index("cpu_big_3"), names.index("gpu")
    us = {name: [op["latency_us"][name] for op in profile.ops] for name in ("cpu_big_3", "gpu")}
    parts = {(0, 0): us["cpu_big_3"][:4], (1, 1): us["cpu_big_3"][4:], (0, 1): us["cpu_big_3"]}
    cost = profile.transfers[0]
    assert made.units == 2
    for (first, last), own in parts.items():
        moved = cost["gpu_to_cpu"] if first else 0.0
        assert made.expected(first, last, cpu) == round((sum(own) + moved) * 1e3)
    assert made.expected(1, 1, gpu) == round((sum(us["gpu"][4:]) + cost["cpu_to_gpu"]) * 1e3)
    assert made.expected(0, 0, gpu) == made.expected(0, 1, gpu) == NEVER
    ran = set[tuple[int, int, int]]()
    told = lambda _, started, __: ran.update((one.first, one.last, one.processor) for one in started)  # noqa: E731
    mix = phones.mix_of({"one": made}, 1.0)
    simulate(mix, {"one": made}, [1, 2], policy("least_slack"), told=told)
    assert {(0, 0, cpu), (1, 1, gpu)} <= ran


def _nobody(stream: Stream, due_ms: float | None) -> Future[None]:
    raise AssertionError("nothing is run")


@pytest.mark.parametrize("stalled", range(4))
def test_a_capacity_is_where_deadlines_begin_to_be_missed(stalled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest load that is kept is found by halving: of who keeps up to 1.5 that is 1.5, whichever probe stalls."""
    probes = count()
    monkeypatch.setattr(capacity, "at_load", lambda mix, load, *_, **__: load)
    monkeypatch.setattr(capacity, "kept", lambda load: next(probes) != stalled and load <= 1.5)
    assert capacity.capacity(read_mix("a@10ms"), {"a": 1.0}, _nobody, 1.0, 12) == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("stalled", range(capacity.PLAYS))
def test_what_a_stall_spoils_is_not_what_is_missed(stalled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several plays of a load, in one of which everything is missed, the usual share counts."""
    played = count()

    def at_load(mix: Mix, *_: object) -> list[Ended]:
        spoilt = next(played) == stalled
        return [Ended("a", 0.0, 0.0, 20.0 if spoilt or run == 0 else 5.0, 10.0) for run in range(10)]

    monkeypatch.setattr(capacity, "at_load", at_load)
    assert capacity.measured(read_mix("a@10ms"), 1.25, {"a": 1.0}, _nobody, 1.0, 1) == pytest.approx(0.1)


def test_decisions_are_judged_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time for mixes the benchmark still judges decisions, and writes rows."""
    monkeypatch.setattr("benchmarks.mixes.decisions.ROUNDS", 2)
    monkeypatch.setattr("sys.argv", ["mixes", "--minutes", "0", "--json", str(tmp_path / "found.json")])
    mixes.main()
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [sorted(row) for row in rows] == [["measure", "must", "ok", "value"]] * 2


def test_a_run_that_is_ended_leaves_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the mixes before stand in the file, those over all of them too; a mix that fails costs only itself."""
    mix_files = []
    for name in ("first", "failing", "ended"):
        mix_files.append(tmp_path / f"{name}.json")
        streams = [{"name": "s", "model": "squeezenet", "period_ms": 10}]
        mix_files[-1].write_text(json.dumps({"name": name, "streams": streams}))

    def one_mix(mix: Mix, *_: object) -> Found:
        if mix.name == "failing":
            raise ValueError("no such model")
        if mix.name == "ended":
            raise KeyboardInterrupt
        return [Measure(f"{compared.CAPACITY}, {mix.name}", 1.25, 0.97, True)], []

    monkeypatch.setattr("benchmarks.mixes.decisions.ROUNDS", 2)
    monkeypatch.setattr(mixes, "one_mix", one_mix)
    monkeypatch.setattr(mixes, "alone", lambda models: dict.fromkeys(models, 5.0))
    found = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["mixes", "--mixes", ",".join(map(str, mix_files)), "--json", str(found)])
    with pytest.raises(KeyboardInterrupt):
        mixes.main()
    rows = {row["measure"]: row["value"] for row in json.loads(found.read_text())["rows"]}
    assert rows[f"{compared.CAPACITY}, first"] == 1.25
    assert rows[f"{compared.CAPACITY}, geometric mean"] == pytest.approx(1.25)


@pytest.mark.parametrize("name", ["small beside large", "best effort"])
def test_what_a_mix_has_beside_its_capacities_costs_only_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it fails the capacities of all configurations, and what is judged by them, stand all the same."""

    def fail(*_: object) -> None:
        raise ValueError("nobody answered in time")

    nothing = nullcontext(SimpleNamespace(measured=lambda *_: 1.0))
    monkeypatch.setattr(compared, "Agent", lambda **_: nothing)
    monkeypatch.setattr(compared, "Pooled", lambda *_: nothing)
    monkeypatch.setattr(compared, "voices", lambda *_: {"s": SimpleNamespace(feed={})})
    monkeypatch.setattr(compared, "ours", lambda *_: None)
    monkeypatch.setattr(compared, "measured", lambda *_: 1.25)
    monkeypatch.setattr(plain, "configurations", lambda *_: {})
    monkeypatch.setattr(compared, "_small", fail)
    monkeypatch.setattr(compared, "_best_effort", fail)
    mix = Mix.model_validate({"name": name, "streams": [{"name": "s", "model": "squeezenet", "period_ms": 10}]})
    measures, [table] = compared.one_mix(mix, {"squeezenet": 5.0}, Path(), 0.0, 1)
    assert [one.value for one in measures if one.measure.startswith(compared.CAPACITY)] == [1.25]
    assert {row[0] for row in table.rows} == {compared.POOL, *compared.OURS}


@pytest.mark.parametrize("dropped", [False, True])
def test_a_capacity_rests_on_what_counts(dropped: bool) -> None:
    """Where every run is dropped nothing is kept, whatever ends the probe; where all end at once, the most is kept."""
    stream = {"name": "a", "model": "a", "period_ms": 20, "deadline_ms": 600_000}
    mix = Mix.model_validate({"streams": [stream]})

    def ask(stream: Stream, due_ms: float | None) -> Future[None]:
        run = Future[None]()
        if dropped:
            run.set_exception(DroppedError("too late"))
        else:
            run.set_result(None)
        return run

    wanted = 0.0 if dropped else (capacity.LEAST * capacity.most()) ** 0.5
    assert capacity.capacity(mix, {"a": 20.0}, ask, 0.1, 1) == pytest.approx(wanted)


def test_a_probe_without_deadlines_is_not_kept() -> None:
    """Nothing is known of a load at which no run was due."""
    assert not capacity.kept([Ended("s", 0.0, 0.0, 1.0, None)])
    assert capacity.kept([Ended("s", 0.0, 0.0, 1.0, 2.0)])
