"""Frozen graphs in one folder that several processes share, start with, and are killed in."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import nullcontext
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from agent_sdk.errors import ProcessorLost
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import Model
from agent_sdk.model.weights import GRAPH_FILE
from agent_sdk.runtimes.base import segment_of
from agent_sdk.runtimes.ort import graph as ort_graph
from agent_sdk.runtimes.ort.graph import FrozenGraph, FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import merge
from tests import CAMPAIGN
from tests.agent.runtimes.networks import random_model

SPAWN = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0
TOGETHER = 4 if CAMPAIGN else 3
KINDS = ("empty", "without locks", "damaged") * (5 if CAMPAIGN else 2)
COMPLETE = ort_graph._complete


def small_model() -> Model:
    """The same in every process."""
    return random_model(1, steps=4)


def frozen(graphs: FrozenGraphs, model: Model) -> FrozenGraph:
    """The frozen graph, which there must be."""
    found = graphs.get(model)
    assert found is not None
    return found


def inode(graph: FrozenGraph) -> int:
    """Which file on the disk it is."""
    return (graph.directory / GRAPH_FILE).stat().st_ino


def looked_at(path: Path) -> bool:
    """The look of a slow process: what it saw may have changed when it acts on it."""
    whole = COMPLETE(path)
    time.sleep(0.05)
    return whole


def freeze_and_cut(folder: Path, start: Barrier, said: SimpleQueue[str]) -> None:
    """Compile every super-op with each cache, together with the others; tell each failure and each warning."""
    model, soc = small_model(), read_soc()
    for index, kind in enumerate(KINDS):
        graphs = FrozenGraphs(folder / str(index))
        processor = OrtProcessor(soc, frozenset(soc.cores[:1]), frozen=graphs)
        used = set()
        start.wait(PATIENCE_S)
        with (
            patch("agent_sdk.runtimes.ort.processor.log.warning", lambda text, *values: said.put(text % values)),
            patch("fcntl.flock", Mock(side_effect=OSError)) if kind == "without locks" else nullcontext(),
            patch.object(ort_graph, "_complete", looked_at if kind == "damaged" else COMPLETE),
        ):
            try:
                used.add(inode(frozen(graphs, model)))
                for super_op in merge(model.graph):
                    processor.compile(segment_of(super_op, model)).close()
            except Exception as error:  # noqa: BLE001  any is a finding
                said.put(f"{kind}: {error!r}")
        start.wait(PATIENCE_S)
        if used != {inode(frozen(graphs, model))}:
            said.put(f"{kind}: taken away")
    said.put("done")


def test_processes_that_start_together_share_one_graph(tmp_path: Path) -> None:
    """Nobody takes away the graph that another one cuts from, whether there was none before or a damaged one."""
    name = frozen(FrozenGraphs(tmp_path / "first"), small_model()).directory.name
    for index, kind in enumerate(KINDS):
        if kind == "damaged":
            (tmp_path / str(index) / name).mkdir(parents=True)
            (tmp_path / str(index) / name / GRAPH_FILE).write_bytes(b"cut off")
    start, said = SPAWN.Barrier(TOGETHER), SPAWN.SimpleQueue()
    work = (tmp_path, start, said)
    processes = [SPAWN.Process(target=freeze_and_cut, args=work, daemon=True) for _ in range(TOGETHER)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(2 * PATIENCE_S)
    assert [said.get() for process in processes if process.exitcode == 0] == ["done"] * TOGETHER
    assert said.empty()
    for index in range(len(KINDS)):
        assert {path.name for path in (tmp_path / str(index)).iterdir()} == {"weights", name}


def die_while_freezing(folder: Path) -> None:
    """Be killed when the optimised graph is about to be written."""
    ort_graph._optimise = lambda source, target: os.kill(os.getpid(), signal.SIGKILL)
    FrozenGraphs(folder).get(small_model())


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Files that a process was freezing when it was killed do not stay for ever."""
    process = SPAWN.Process(target=die_while_freezing, args=(tmp_path,))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL
    assert [path for path in tmp_path.rglob("*") if path.name == "optimised"]
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.utime(path, (ago := time.time() - 600, ago))
    graphs, model = FrozenGraphs(tmp_path), small_model()
    assert {frozen(graphs, model).directory, tmp_path / "weights"} == set(tmp_path.iterdir())
    assert list((tmp_path / "weights").iterdir()) == [graphs.lights.get(model)[1]]


def test_a_graph_that_is_gone_is_an_error_of_the_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process removes the graph between the look and the reading, the error says so; then it works."""
    graphs, model = FrozenGraphs(tmp_path), small_model()
    monkeypatch.setattr(ort_graph, "_complete", lambda path: True)
    with pytest.raises(ProcessorLost, match=r"optimised graph of .* No such file"):
        graphs.get(model)
    monkeypatch.undo()
    assert frozen(graphs, model)
