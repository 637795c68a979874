"""The wheel: what is in it works without the checkout, and what is not installed is asked for in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("agent_sdk", "hope_schema", "planner_api")


def ran(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, with nothing of this process's paths."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], env=inherited | environment, cwd="/", capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' directory of an environment that holds our wheel and nothing it depends on."""
    where = tmp_path_factory.mktemp("wheel")
    source = where / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = ran(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", where, source)
    assert built.returncode == 0, built.stderr
    venv.create(where / "venv", symlinks=True)
    scripts = where / "venv" / "bin"
    wheel = next(where.glob("hope_inference-*.whl"))
    installed = ran(*pip, "--python", scripts / "python", "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    return scripts


@pytest.mark.parametrize(
    ("command", "extra"), [(("hope-agent", "devices"), "cli"), (("hope-planner", "serve"), "planner")]
)
def test_a_bare_install_names_the_extra(command: tuple[str, ...], extra: str, bare: Path) -> None:
    """Both commands come with the base package; without their extras each answers with one line, no traceback."""
    done = ran(bare / command[0], *command[1:])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"pip install 'hope-inference[{extra}]'" in done.stderr


def test_a_bare_import_names_the_extra(bare: Path) -> None:
    """In Python the import that cannot be had says which extra brings it."""
    done = ran(bare / "python", "-c", "from agent_sdk import Agent")
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert "pip install 'hope-inference[agent]'" in done.stderr


def test_an_installed_planner_brings_its_migrations(bare: Path, tmp_path: Path) -> None:
    """Outside a checkout, with what it depends on at hand, ``hope-planner migrate`` makes every table."""
    libraries = sysconfig.get_path("purelib")
    database = tmp_path / "planner.sqlite"
    done = ran(bare / "hope-planner", "migrate", "--database", f"sqlite:///{database}", PYTHONPATH=libraries)
    assert done.returncode == 0, done.stderr
    assert database.stat().st_size > 0
