"""The image and the composition, read as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from compose_spec import PyOptions

from planner_api.settings import Settings
from tests.planner.commanding import parsed

CHARTS = Path(__file__).parents[2] / "charts"
ROOT = CHARTS.parent
INSTRUCTIONS = re.findall(r"^(\w+) (.+)$", (CHARTS / "Dockerfile").read_text(), re.MULTILINE)
SERVICES = yaml.safe_load((CHARTS / "docker-compose.yml").read_text())["services"]
OURS = {name: service for name, service in SERVICES.items() if name != "database"}


def test_the_image_runs_the_planner_as_nobody() -> None:
    """Its last stage has no sources, a numeric user that is not root, and starts a command that parses."""
    last = dict(INSTRUCTIONS[max(at for at, (word, _) in enumerate(INSTRUCTIONS) if word == "FROM") :])
    assert last["COPY"].startswith("--from=")
    assert int(last["USER"].split(":")[0]) > 0
    assert json.loads(last["ENTRYPOINT"]) == ["hope-planner"]
    parsed(json.loads(last["CMD"]))


def test_the_image_is_built_of_what_the_checkout_sends() -> None:
    """What the build reads is not among what .dockerignore keeps back, and the extras that it installs exist."""
    kept_back = set((ROOT / ".dockerignore").read_text().split())
    build = next(rest for word, rest in INSTRUCTIONS if word == "RUN")
    (constraints, extras) = re.search(r"-c (\S+) '\.\[([\w,]+)\]'", build).groups()
    for path in (constraints, "pyproject.toml", "README.md", "planner_api", "hope_schema"):
        assert (ROOT / path).exists()
        assert path not in kept_back
    for extra in extras.split(","):
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)


def test_the_composition_keeps_to_its_specification() -> None:
    """A strict reader of the Compose specification takes it: no key, condition or port in it means nothing."""
    reader = PyOptions()
    reader.apply_merge = True
    reader.from_yaml((CHARTS / "docker-compose.yml").read_text())


def test_every_service_runs_a_command_and_settings_that_exist() -> None:
    """The composition's commands parse, its HOPE_ variables are settings, and none of ours writes its file system."""
    known = {f"HOPE_{name.upper()}" for name in Settings.model_fields}
    for service in OURS.values():
        parsed(service["command"])
        assert {name for name in service["environment"] if name.startswith("HOPE_")} <= known
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert (CHARTS / service["build"]["context"]).resolve() == ROOT
        assert set(service["depends_on"]) <= set(SERVICES)
    assert "ports" not in SERVICES["database"]
