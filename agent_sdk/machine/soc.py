"""Which hardware is this? The SoC's name, its core classes and the frequency label a profile is kept under."""

import logging
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from agent_sdk.machine.topology import Site, affordable, cpu_quota, locate, read_text

log = logging.getLogger(__name__)

SYSFS = Path("/sys/devices/system/cpu")
NVIDIA = Path("/proc/driver/nvidia/gpus")
_CLASS_NAMES: Mapping[int, tuple[str, ...]] = {1: ("core",), 2: ("big", "little"), 3: ("prime", "big", "little")}


@dataclass(frozen=True)
class Soc:
    """A device's hardware as the planner knows it.

    ``name`` and ``frequency`` key the profile. ``core_class`` maps every usable CPU number to the name of its
    class; CPUs of one class are equal and measured once. ``sites`` says where each sits (``topology.locate``).
    """

    name: str
    frequency: str
    core_class: Mapping[int, str]
    sites: Mapping[int, Site] = field(default_factory=dict)

    @cached_property
    def cores(self) -> tuple[int, ...]:
        """CPU numbers this process may use, ascending."""
        return tuple(sorted(self.core_class))

    def class_of(self, cores: frozenset[int]) -> str:
        """The class of a set of cores: one name if they are equal, else a count per class (``1big+3little``)."""
        names = [self.core_class[core] for core in sorted(cores)]
        distinct = sorted(set(names))
        if len(distinct) == 1:
            return distinct[0]
        return "+".join(f"{names.count(name)}{name}" for name in distinct)


def read_soc(sysfs: Path = SYSFS, cores: frozenset[int] | None = None, root: Path = Path("/")) -> Soc:
    """Read the SoC from ``sysfs``: of the CPUs this process may run on (``cores``) those that its quota pays for."""
    allowed = cores if cores is not None else frozenset(os.sched_getaffinity(0))
    sites, quota = locate(sysfs, allowed), cpu_quota(root)
    usable = affordable(sites, allowed, quota)
    if len(usable) < len(allowed):
        why = f"may use {quota:g} cores' worth of time" if quota is not None else "is offered no more"
        log.warning("%d of %d cores are used: this process %s", len(usable), len(allowed), why)
    classes = core_classes(sysfs, usable)
    counts = "+".join(
        f"{sum(1 for own in classes.values() if own == name)}{name}" for name in dict.fromkeys(classes.values())
    )
    name = "+".join([f"{_cpu_name()}-{counts}", *accelerator_names()])
    return Soc(name=_label(name), frequency=_frequency(sysfs, classes), core_class=classes, sites=sites)


def accelerator_names(directory: Path = NVIDIA) -> list[str]:
    """The GPUs that a driver shows, with their number where there are several of one kind."""
    models = [
        line.partition(":")[2].strip()
        for file in sorted(directory.glob("*/information"))
        for line in read_text(file).splitlines()
        if line.startswith("Model:")
    ]
    return [f"{models.count(model)}x{model}" if models.count(model) > 1 else model for model in dict.fromkeys(models)]


def core_classes(sysfs: Path, cores: frozenset[int]) -> dict[int, str]:
    """Group cores by what tells them apart: the kernel's capacity, else the highest clock, else nothing.

    Capacity (``cpu_capacity``) is how Linux ranks big and LITTLE cores; hybrid x86 shows only different clocks,
    and there two favoured cores a few per cent above the others still count as equal (within 15 %).
    """
    strength = {core: _strength(sysfs / f"cpu{core}") for core in cores}
    levels: list[float] = []
    for value in sorted(set(strength.values()), reverse=True):
        if not levels or value < 0.85 * levels[-1]:
            levels.append(value)
    names = _CLASS_NAMES.get(len(levels)) or tuple(f"class{index}" for index in range(len(levels)))
    rank = {core: max(i for i, level in enumerate(levels) if strength[core] <= level) for core in cores}
    return {core: names[rank[core]] for core in sorted(cores)}


def _strength(cpu: Path) -> float:
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        text = read_text(cpu / name)
        if text.isdigit() and int(text) > 0:
            return float(text)
    return 1.0


def _frequency(sysfs: Path, classes: Mapping[int, str]) -> str:
    """The operating point: governor and highest allowed clock per class; ``fixed`` where the kernel shows none."""
    points: dict[str, str] = {}
    for core, name in classes.items():
        governor = read_text(sysfs / f"cpu{core}/cpufreq/scaling_governor")
        highest = read_text(sysfs / f"cpu{core}/cpufreq/scaling_max_freq")
        if governor and highest.isdigit():
            points.setdefault(name, f"{governor}-{int(highest) // 1000}mhz")
    named = "+".join(f"{name}-{point}" for name, point in points.items())
    return _label(named.replace("/", "-")) if points else "fixed"


def _cpu_name() -> str:
    for path in ("/sys/devices/soc0/machine", "/proc/device-tree/model"):
        text = read_text(Path(path))
        if text:
            return text
    rows = (line.partition(":") for line in read_text(Path("/proc/cpuinfo")).splitlines())
    info = {key.strip(): value.strip() for key, _, value in rows}
    name = info.get("model name") or info.get("Hardware") or platform.processor() or platform.machine()
    numbers = [info[key] for key in ("cpu family", "model", "stepping") if key in info]
    return f"{name}-{'.'.join(numbers)}" if numbers else name


def _label(text: str) -> str:
    """Squeeze text into a ``hope_schema`` label: lower case, no spaces, at most 128 characters."""
    text = re.sub(r"\((r|tm)\)", "", text.lower())
    cleaned = re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9._+-]+", "-", text)).strip("-._+")
    return cleaned[-128:].strip("-._+") or "unknown"
