"""aarch64 is a platform like x86-64: in a Debian root for it, run by QEMU, the package installs, tests and runs.

Takes about two hours. What emulation cannot show: how fast anything is, and the weak order in which real ARM cores see
each other's writes, for QEMU on x86-64 keeps the strong one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import CAMPAIGN

ROOT = Path(__file__).parent.parent
SOURCES = ("agent_sdk", "hope_schema", "planner_api", "hope_zoo", "pyproject.toml", "README.md", "LICENSE")
TESTS = ("tests", "benchmarks")
NEEDED = ("debootstrap", "qemu-aarch64-static", "chroot", "unshare")
PACKAGES = "python3,python3-venv,python3-dev,gcc,libc6-dev"
EXTRAS = ".[agent,cli,planner]"
FOR_TESTS = ("hypothesis", "openvino>=2025.3", "psutil", "pytest", "pytest-timeout")
BUILD = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
GLIBC = range(17, 37)
"""Releases of the C library, 2.17 and later, whose wheels run in the root."""
BINFMT = Path("/proc/sys/fs/binfmt_misc")
RULE = r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00" + (
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{}:F"
)
CORE = """processor\t: {}
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

"""
"""A Cortex-A72, which ONNX Runtime looks for; QEMU shows the host's file."""
NOT_EMULATED = "tests/agent/engine/test_bad_input.py::test_want_of_memory_is_not_taken_for_an_unsupported_op"
"""QEMU's user mode takes no limit on the address space from the program that it runs."""
TWO_LANES = """
import numpy as np
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.model import read_model
from agent_sdk.native import library
from agent_sdk.runtimes.offered import discover
from tests.agent.engine.generate import dealt_plan, random_inputs
import onnxruntime as ort

assert library() is not None
model = read_model("squeezenet")
single = [own for own in discover("ort") if own.spec.threads == 1][:2]
assert len(single) == 2, single
feeds = random_inputs(model, 0)
with Device(single) as device:
    plan = dealt_plan(model, [own.id for own in single])
    with Executor(build_program(plan, model, device.processors), device) as executor:
        outputs, trace = executor.run(feeds)
        outputs, trace = executor.run(feeds)
names = list(model.graph.outputs)
session = ort.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
for name, expected in zip(names, session.run(names, feeds)):
    np.testing.assert_allclose(outputs[name], expected, rtol=1e-3, atol=1e-5)
print(f"two native lanes, {len(trace.segments)} segments, right")
"""


def lacking() -> str:
    """Why the campaign cannot run here; empty if it can."""
    if not CAMPAIGN:
        return "two hours: HOPE_CAMPAIGN=1 runs it"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install debootstrap qemu-user-static"
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux: for chroot, mounts and binfmt_misc"
    return ""


pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())


def ran(command: Sequence[str | Path], seconds: float, **environment: str) -> str:
    """What a command said; it must end well, in that many seconds."""
    started = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
    )
    assert started.returncode == 0, f"{command}: {started.stdout[-4000:]}"
    return started.stdout


class Arm:
    """A Debian root for arm64 in a directory, with our package installed."""

    def __init__(self, where: Path) -> None:
        self.root = where / "root"
        self.cpuinfo = where / "cpuinfo"
        self.cpuinfo.write_text("".join(map(CORE.format, range(os.cpu_count() or 1))))

    def inside(self, script: str, seconds: float) -> str:
        """What a shell's script says in there. Its mounts are its own, and gone with it."""
        mounts = f"""set -e
mount -t proc proc '{self.root}/proc'
mount --bind '{self.cpuinfo}' '{self.root}/proc/cpuinfo'
mount --rbind /sys '{self.root}/sys'
mount --rbind /dev '{self.root}/dev'
exec chroot '{self.root}' /usr/bin/env -i PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
QEMU_CPU=cortex-a72 PYTHONPATH=/tests bash -e -c "$1"
"""
        command = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-c"]
        said = ran([*command, mounts, "sh", f"cd /tests && {script}"], seconds)
        print(said[-3000:])
        return said


def wheels(target: Path) -> None:
    """Wheels for arm64 of all that the root installs, found by this machine's pip in the ways it is set up with."""
    built = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC]
    platforms = [*built, "--platform=manylinux2014_aarch64", "--python-version=3.11", "--only-binary=:all:"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "-c", "constraints.txt", "-d", target]
    ran([*pip, *platforms, EXTRAS, *FOR_TESTS, *BUILD], 600)


def register_emulator() -> None:
    """Have the kernel run programs for aarch64 with QEMU, if it does not yet; it forgets that with the next boot."""
    if not (BINFMT / "register").exists():
        ran(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], 10)
    if not any("aarch64" in rule.name for rule in BINFMT.iterdir()):
        (BINFMT / "register").write_text(RULE.format(shutil.which("qemu-aarch64-static")))


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """The root, made once."""
    where = tmp_path_factory.mktemp("arm64")
    made = Arm(where)
    register_emulator()
    options = ["--arch=arm64", "--variant=minbase", "--foreign", f"--include={PACKAGES}"]
    ran(["debootstrap", *options, "bookworm", made.root], 900)
    ran(["chroot", made.root, "/debootstrap/debootstrap", "--second-stage"], 1800, QEMU_CPU="cortex-a72")
    wheels(made.root / "wheels")
    install(made)
    return made


def install(arm: Arm) -> None:
    """Copy what is built and what is tested, build the one in there and lay the other beside it."""
    for folder, names in (("src", SOURCES), ("tests", TESTS)):
        shutil.rmtree(arm.root / folder, ignore_errors=True)
        (arm.root / folder).mkdir()
        for name in names:
            source, target = ROOT / name, arm.root / folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, target)
    wanted = " ".join(f"'{name}'" for name in (EXTRAS, "./hope_zoo", *FOR_TESTS, *BUILD))
    said = arm.inside(
        "python3 -m venv /venv; cd /src; /venv/bin/python -m pip install --quiet --no-index --find-links /wheels "
        f"{wanted}; cd /; python -c 'import platform, agent_sdk.native as n; print(platform.machine(), n.library())'",
        1800,
    )
    assert "aarch64" in said
    assert "lanes.so" in said


def test_the_engine_passes_its_tests(arm: Arm) -> None:
    """The engine's own tests, random plans among them, on emulated cores."""
    command = f"python -m pytest -q --timeout 1500 tests/agent/engine --deselect {NOT_EMULATED}"
    said = arm.inside(f"timeout 7200 {command}", 7300)
    assert " passed" in said.splitlines()[-1]


def test_a_plan_runs_over_two_lanes(arm: Arm) -> None:
    """Squeezenet's super-ops dealt out to two cores, in two threads without the interpreter."""
    assert "two native lanes" in arm.inside(f"timeout 1200 python - <<'END'\n{TWO_LANES}\nEND", 1260)


def test_hope_agent_runs_a_network(arm: Arm) -> None:
    """The command, from measuring to outputs that were checked; OpenVINO, emulated, hangs.

    Whether a plan answers depends on how much an emulated machine measures in the time that measuring may take.
    """
    assert "the same numbers" in arm.inside("timeout 3000 hope-agent run squeezenet --processors ort", 3100)
