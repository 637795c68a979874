"""The wheel: what is in it works without the checkout, and what is not installed is asked for in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests import CAMPAIGN

ROOT = Path(__file__).parent.parent
PACKAGES = ("agent_sdk", "hope_schema", "planner_api")


def ran(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, with nothing of this process's paths."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], env=inherited | environment, cwd="/", capture_output=True, text=True
    )


def copied(source: Path) -> Path:
    """What a wheel is built from, without what was built in the checkout."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    return source


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' directory of an environment that holds our wheel and nothing it depends on."""
    where = tmp_path_factory.mktemp("wheel")
    source = copied(where / "source")
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


def test_the_wheel_brings_what_is_built_for_any_python(bare: Path) -> None:
    """Built at install, for this machine's C library, and loadable from where it was installed."""
    (wheel,) = bare.parents[1].glob("hope_inference-*.whl")
    assert wheel.name.split("-", 2)[2].startswith("py3-none-linux_")
    code = "import ctypes, pathlib, agent_sdk; at = pathlib.Path(agent_sdk.__file__).parents[1]; " + (
        "ctypes.CDLL(str(at / 'agent_sdk/native/lanes.so')).hope_make_arbiter;"
        "ctypes.CDLL(str(at / 'planner_api/planning/native/kernels.so')).hope_anneal"
    )
    done = ran(bare / "python", "-c", code)
    assert done.returncode == 0, done.stderr


BUILD = """
import sys

sys.path.insert(0, "agent_sdk/native")
import building

sys.exit(building.build_wheel(sys.argv[1]) == "")
"""
"""What pip does, which takes three processes for it."""
OFFLINE = f"""
import os, sys

os.environ["PATH"] = ""
sys.modules["ziglang"] = None
{BUILD}"""


def made(source: Path, program: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel from a source by one of these programs, into a folder."""
    command = [sys.executable, "-c", program, str(folder)]
    return subprocess.run(command, cwd=source, env=os.environ | environment, capture_output=True, text=True)


def test_without_a_compiler_and_without_a_network_the_package_is_there_without_its_libraries(tmp_path: Path) -> None:
    """What is left out, and what follows from it, is said; nobody is asked for a compiler."""
    built = made(copied(tmp_path / "source"), OFFLINE, tmp_path)
    assert built.returncode == 0, built.stderr
    said = "is left out, plans will be slower: no C compiler was found"
    assert built.stderr.count(said) == 2
    (wheel,) = tmp_path.glob("hope_inference-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"agent_sdk/agent.py", "planner_api/app.py"} <= set(names)
    assert not [name for name in names if name.endswith(".so")]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"] if CAMPAIGN else ["aarch64"])
def test_a_wheel_for_another_machine_is_made_by_the_compiler_from_pip(machine: str, tmp_path: Path) -> None:
    """Tagged for every distribution that has the C library asked for, with code of that machine in it."""
    built = made(copied(tmp_path / "source"), BUILD, tmp_path, HOPE_WHEEL_MACHINE=machine)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob(f"hope_inference-*-py3-none-manylinux_2_17_{machine}.whl")
    for name in ("agent_sdk/native/lanes.so", "planner_api/planning/native/kernels.so"):
        library = zipfile.ZipFile(wheel).read(name)
        assert int.from_bytes(library[18:20], "little") == {"x86_64": 62, "aarch64": 183}[machine]


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
