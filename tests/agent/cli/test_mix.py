"""``hope-agent mix``: what it plays and prints, and the mixes that it refuses."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agent_sdk.cli.commands import main
from agent_sdk.cli.mixing import Played, busy, show
from agent_sdk.errors import InputError, QueueFullError
from agent_sdk.scheduling.mixes import Mix, Stream, read_mix
from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.outcome import Ended, percentile, summed_up
from agent_sdk.scheduling.playing import play
from agent_sdk.scheduling.policies import POLICIES, policy
from tests.agent.models import BRANCHING
from tests.agent.scheduling.simulation import simulate


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Path:
    """A small network in a file, and a cache of its own."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "small.onnx"
    path.write_bytes(BRANCHING)
    return path


def written(tmp_path: Path, content: object) -> str:
    """A mix file."""
    path = tmp_path / "mix.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_a_mix_is_played_under_every_policy(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a periodic, a random and a closed stream and a follower is played, as JSON and as a trace."""
    streams = [
        {"name": "camera", "model": str(model), "period_ms": 40, "jitter_ms": 2},
        {"name": "burst", "model": str(model), "period_ms": 60, "arrival": "poisson", "on_late": "drop"},
        {"name": "loop", "model": str(model), "arrival": "closed"},
        {"name": "then", "model": str(model), "after": {"stream": "camera"}},
    ]
    mix = written(tmp_path, {"version": 1, "name": "test", "seconds": 0.4, "streams": streams})
    trace = tmp_path / "trace.json"
    asked = ["mix", mix, "--policies", "all", "--json", "--quiet", "--processors", "ort", "--trace", str(trace)]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["policy"] for one in found["policies"]] == list(POLICIES)
    assert "two sessions" in found["note"]  # one stream alone is periodic, and a joint plan is of several
    for one in found["policies"]:
        camera, burst, loop, then = one["streams"]
        assert camera["runs"] == 10
        assert loop["runs"] > 0
        assert burst["deadlines"] == burst["runs"]
        assert then["runs"] <= camera["runs"]
        assert not any(stream["failed"] for stream in one["streams"])
    assert {event["name"] for event in json.loads(trace.read_bytes())["traceEvents"]} >= {"camera", "loop"}


def test_a_mix_in_a_line_prints_a_timeline(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rates and periods stand in a line; the load is as asked for."""
    assert (
        main(["mix", f"{model}@20fps,{model}", "--seconds", "0.3", "--load", "0.2", "--quiet", "--processors", "ort"])
        == 0
    )
    printed = capsys.readouterr().out
    assert "load 0.20" in printed
    assert "small#2" in printed
    assert "a column is" in printed
    assert "! its deadline is missed" in printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"version": 2, "streams": []}, "version 2"),
        ({"streams": []}, "streams"),
        ({"streams": [{"name": "a", "model": "m"}]}, "no period_ms"),
        ({"streams": [{"name": "a", "model": "m", "period_ms": -1}]}, "period_ms"),
        ({"streams": [{"name": "a", "model": "m", "arrival": "trace"}]}, "no trace_ms"),
        (
            {"streams": [{"name": "a", "model": "m", "period_ms": 1, "surprise": 1}]},
            "is no mix: streams.0: unknown key 'surprise'; known: name, model, shape, ",
        ),
        ({"second": 3, "streams": []}, "is no mix: unknown key 'second'; known: version, name, seconds, streams$"),
        ({"seconds": 80_000, "streams": [{"name": "a", "model": "m", "period_ms": 0.001}]}, "more than"),
        ([], "no mix"),
        (
            {
                "streams": [
                    {"name": name, "model": "m", "after": {"stream": other}} for name, other in ("ab", "bc", "ca")
                ]
            },
            "comes after itself",
        ),
        ({"streams": [{"name": "a", "model": "m", "after": {"stream": "b"}}]}, "not in the mix"),
        *(
            (
                {"streams": [{"name": "a", "model": "m", "after": {"stream": "b"}, "trace_ms": [1], **own}]},
                "it can be one of them",
            )
            for own in ({"arrival": "closed"}, {"arrival": "trace"}, {"arrival": "poisson", "period_ms": 5})
        ),
        ({"streams": [{"name": "a", "model": "m", "period_ms": 5}] * 2}, "twice"),
    ],
)
def test_bad_mixes_are_refused(tmp_path: Path, content: Any, said: str) -> None:
    """A file of another version, a cycle, and whatever else is no mix, with its cause."""
    with pytest.raises(InputError, match=said):
        read_mix(written(tmp_path, content))


def test_what_is_no_mix_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing files, text that is no JSON, lines that make no sense, and policies that do not exist exit with 2."""
    (tmp_path / "bad.json").write_text("{")
    for given, said in (
        (str(tmp_path / "none.json"), "cannot read"),
        (str(tmp_path / "bad.json"), "no JSON"),
        ("a@0fps", "no rate"),
        ("a@b@c", "no stream"),
        ("a@1.2.3fps", "no rate"),
    ):
        assert main(["mix", given, "--quiet"]) == 2
        assert said in capsys.readouterr().err
    assert main(["mix", "squeezenet@1fps", "--policies", "fifo,best"]) == 2
    told = capsys.readouterr().err
    assert "'--policies': 'best'" in told
    assert all(f"'{name}'" in told for name in POLICIES)


def test_a_mix_keeps_its_shape_at_another_load() -> None:
    """Times grow by one factor, and the load is the one asked for."""
    mix = read_mix("a@100ms,b@50ms,c")
    alone = {"a": 10.0, "b": 20.0, "c": 5.0}
    assert mix.load(alone) == pytest.approx(0.5)
    twice = mix.at_load(1.0, alone)
    assert twice.load(alone) == pytest.approx(1.0)
    assert [stream.period_ms for stream in twice.streams] == [50.0, 25.0, None]


@pytest.mark.parametrize("load", [1e300, 1e-300, 5e6])
def test_a_load_that_no_mix_has_is_refused(load: float) -> None:
    """Periods without end, and more runs than there may be, however they are asked for."""
    for mix in (read_mix("a@100ms,b@50ms,c"), Mix.model_validate({"streams": [RANDOM]})):
        with pytest.raises(InputError, match="no mix"):
            mix.at_load(load, {"a": 10.0, "b": 20.0})


def test_a_file_is_not_played_for_longer_than_its_runs_allow(tmp_path: Path) -> None:
    """``--seconds`` is held against the same bounds as the file's own."""
    file = written(tmp_path, {"seconds": 1, "streams": [{**RANDOM, "period_ms": 0.01}]})
    assert read_mix(file, 5.0).seconds == 5.0
    for seconds in (80_000.0, 1e6):
        with pytest.raises(InputError, match="no mix"):
            read_mix(file, seconds)


def test_networks_of_one_name_are_told_apart() -> None:
    """The same file twice, and files of one name in two folders."""
    mix = read_mix("x/a.onnx@10ms,y/a.onnx@10ms,x/a.onnx")
    assert [stream.name for stream in mix.streams] == ["a", "a#2", "a#3"]


def test_what_is_refused_or_never_ends_is_missed() -> None:
    """A full queue drops a run and the loop asks again; what has not ended when the mix is over is taken out."""
    streams = [{"name": "hangs", "model": "m", "period_ms": 10}, {"name": "refused", "model": "m", "arrival": "closed"}]
    asked: list[Future[Any]] = []

    def ask(stream: Stream, deadline_ms: float | None) -> Future[Any]:
        if stream.name == "refused":
            raise QueueFullError("full")
        asked.append(Future())
        return asked[-1]

    ended = play(Mix.model_validate({"seconds": 0.05, "streams": streams}), ask, grace_s=0.01)
    assert len(asked) == 5
    assert all(future.cancelled() for future in asked)
    hung, refused = ([one for one in ended if one.stream == name] for name in ("hangs", "refused"))
    assert [one.missed and not one.dropped for one in hung] == [True] * 5
    assert len(refused) > 1
    assert all(one.dropped and one.failure == "full" for one in refused)


RANDOM = {"name": "a", "model": "m", "period_ms": 10, "arrival": "poisson"}


def test_a_processor_is_busy_for_no_longer_than_the_time() -> None:
    """Runs that step in count within those that give way, and what goes on after the mix does not."""
    times = {"a": [(0, 10), (2, 4), (3, 12), (30, 50)], "b": [(5, 6)]}
    ended = [Ended("s", 0.0, begin, end, None, where=where) for where, own in times.items() for begin, end in own]
    assert busy([*ended, Ended("s", 0.0, None, None, 1.0, dropped=True)], 40.0) == {"a": 0.55, "b": 0.025}


def test_outcomes_are_summed_up() -> None:
    """Percentiles, misses and throughput of a simulated stream are those worked out by hand."""
    streams = [{"name": "s", "model": "m", "period_ms": 10, "deadline_ms": 25, "on_late": "drop"}]
    mix = Mix.model_validate({"seconds": 0.1, "streams": streams})
    ended = simulate(mix, {"m": Network("m", 1, 1, {(0, 0, 0): 20_000_000})}, [1], policy("least_slack"))
    found = summed_up("s", ended, mix.seconds)
    # One run takes two periods: every other one is dropped once the slack of 5 ms is used up.
    assert (found.runs, found.dropped, found.missed) == (10, 5, 5)
    assert (found.p50_ms, found.per_second) == (20.0, 50.0)
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.0
    assert percentile([], 0.5) is None


def test_the_table_of_a_mix_fits_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """Of networks with names as long as the zoo's every column is whole in 80 columns."""
    name = "pnasnet_mobile"
    ended = [Ended(name, 0.0, 0.0, 1_000.0, 2_000.0)] * 1000
    show(Played("earliest_deadline", read_mix(f"{name}@50fps"), ended, {}), Console(width=80))
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "runs/s" in printed


def test_names_of_a_mix_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Square brackets are neither swallowed nor obeyed, and no control character reaches the terminal."""
    streams = [{"name": "net[int8]\x1b[2J", "model": "m", "period_ms": 20}]
    mix = Mix.model_validate({"name": "[/b] a[b]", "streams": streams})
    show(Played("fifo", mix, [Ended(streams[0]["name"], 0.0, 0.0, 1.0, 20.0)], {}), Console(width=120))
    printed = capsys.readouterr().out
    assert "[/b] a[b] under fifo" in printed
    assert "net[int8]?[2J" in printed
    assert "\x1b" not in printed
