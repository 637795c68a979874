"""The same job against ``hope-planner serve`` in another process, over a real socket."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_sdk.cli import commands as cli
from tests import ENDING_WITH_TESTS

START_S = 60
"""Longest time a planner may take to say where it listens, on a busy machine."""


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Run a planner on a SQLite file in ``directory`` until the block ends; yield its URL."""
    database, log = directory / "planner.sqlite", directory / "planner.log"
    options = ["--port", "0", "--database", f"sqlite:///{database}"]
    command = [*ENDING_WITH_TESTS, sys.executable, "-m", "planner_api", "serve", *options]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        end = time.monotonic() + START_S
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
            assert process.poll() is None, f"the planner ended: {log.read_text()}"
            assert time.monotonic() < end, f"the planner did not say where it listens: {log.read_text()}"
            time.sleep(0.05)
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command with one JSON object expected on stdout."""
    code = cli.main(["run", *arguments, "--processors", "ort@0", "--json", "--runs", "2", "--quiet"])
    out, err = capsys.readouterr()
    assert code == cli.OK, err
    return json.loads(out)


def test_one_planner_serves_many_devices(
    cache: Path, model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second device of the same kind measures nothing and gets the first one's plan; then the planner goes away."""
    with served(tmp_path) as url:
        first = run(capsys, "--model", str(model_file), "--planner", url, "--wait", "20")
        monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "second-device"))
        second = run(capsys, "--model", str(model_file), "--planner", url, "--wait", "20")
    assert first["profiled_signatures"] > 0
    assert (second["profiled_signatures"], second["plan_cached"]) == (0, True)
    assert second["plan_id"] == first["plan_id"]
    assert max(first["max_rel_error"], second["max_rel_error"]) <= 1e-4
    offline = run(capsys, "--model", str(model_file), "--planner", url)
    assert (offline["plan_source"], offline["plan_id"]) == ("disk", first["plan_id"])
    assert "last plan from the disk cache" in offline["notes"][0]
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "third-device"))
    alone = run(capsys, "--model", str(model_file), "--planner", url)
    assert (alone["plan_source"], alone["plan_id"]) == ("single", None)
    assert alone["max_rel_error"] <= 1e-4
    assert "the fastest single processor" in alone["notes"][0]
