"""How the cores of this machine hang together, and which groups of them are worth offering as processors.

A group is a gang: one runtime on several cores. All cores, halves, quarters and so on down to single cores are
offered, cut where the machine is: between NUMA nodes, caches that cores share, physical cores. Equal groups (as many
cores of one class) are measured once.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

Site = tuple[int, ...]
"""Where a CPU sits, from the outermost level that cores share to the physical core."""
MAX_CORES: Final = 256
"""CPUs used at most: as many resources as a processor of the contract may have."""
MAX_GROUPS: Final = 24
"""Groups offered per runtime at most; more of them add solving time and hardly any choice."""
MAX_EQUAL: Final = 8
"""Groups of one size offered at most."""
SHARED_CACHES: Final = (3, 2)
"""Levels of caches that cores may share, the outermost first."""


def locate(sysfs: Path, cores: Collection[int]) -> dict[int, Site]:
    """Where each CPU sits: NUMA node, outermost shared cache, next one, physical core; the first CPU of each.

    What the kernel does not show counts as one for all, but for the physical core, which then is the CPU itself.
    """
    node_of = {core: int(path.name[4:]) for core in cores for path in (sysfs / f"cpu{core}").glob("node[0-9]*")}
    return {
        core: (
            node_of.get(core, 0),
            *(_first_sharing(sysfs / f"cpu{core}", level) for level in SHARED_CACHES),
            min(_listed(sysfs / f"cpu{core}/topology/thread_siblings_list") or [core]),
        )
        for core in cores
    }


def _first_sharing(cpu: Path, level: int) -> int:
    for index in sorted(cpu.glob("cache/index[0-9]*")):
        if read_text(index / "level") == str(level) and read_text(index / "type") != "Instruction":
            return min(_listed(index / "shared_cpu_list") or [0])
    return 0


def control_groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The folders of this process's control groups, its own and those above, and whether they are of version 2."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / controllers
        own = base.joinpath(*Path(group).parts[1:])
        for place in {own, *own.parents, base}:
            if place == base or base in place.parents:
                yield place, not controllers


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many cores' worth of time this process's control groups allow it; None for no limit."""
    found = []
    for group, unified in control_groups(root, "cpu"):
        files = ["cpu.max"] if unified else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        words = " ".join(read_text(group / name) for name in files).split()
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def in_order(where: Mapping[int, Site], cores: Collection[int]) -> list[int]:
    """CPUs so that those that share most stand side by side."""
    return sorted(cores, key=lambda core: (where.get(core, ()), core))


def affordable(where: Mapping[int, Site], cores: Collection[int], quota: float | None) -> frozenset[int]:
    """As many neighbouring physical cores as a quota of CPU time keeps busy, at least one; all without a quota.

    Threads beyond the quota would be stopped together for most of every period.
    """
    order = in_order(where, cores)[:MAX_CORES]
    if quota is None or quota >= len(order):
        return frozenset(order)
    physical = physical_cores(where, order)
    rest = [core for core in order if core not in physical]
    return frozenset([*physical, *rest][: max(1, int(quota + 0.01))])


def physical_cores(where: Mapping[int, Site], cores: Sequence[int]) -> list[int]:
    """One CPU of each physical core: two threads of one core hardly compute more than one."""
    return list({where[core][-1] if core in where else core: core for core in reversed(cores)}.values())[::-1]


def core_groups(core_class: Mapping[int, str], where: Mapping[int, Site]) -> list[frozenset[int]]:
    """The groups to offer: per class of equal cores a ladder of halves, then all cores; each set once."""
    classes: dict[str, list[int]] = {}
    for core in in_order(where, core_class):
        classes.setdefault(core_class[core], []).append(core)
    physical = [physical_cores(where, own) for own in classes.values()]
    groups = [group for own in physical for group in _ladder(where, own, MAX_GROUPS // len(physical))]
    together = [frozenset(core for own in physical for core in own), frozenset(core_class)]
    return list(dict.fromkeys([*groups, *together]))


def _ladder(where: Mapping[int, Site], cores: Sequence[int], most: int) -> list[frozenset[int]]:
    """All of some cores, halves, quarters, ... single ones; of each size some, of the larger ones all."""
    levels: list[list[Sequence[int]]] = [[cores]]
    while any(len(group) > 1 for group in levels[-1]):
        levels.append([part for group in levels[-1] for part in halves(where, group)])
    offered: list[frozenset[int]] = []
    for index, level in enumerate(levels):
        room = most - len(offered) - (len(levels) - index - 1)
        offered += [frozenset(group) for group in level[: max(1, min(MAX_EQUAL, room))]]
    return offered


def halves(where: Mapping[int, Site], cores: Sequence[int]) -> list[Sequence[int]]:
    """A group in two, near its middle, and there where what its two sides share is farthest out; one core stays."""
    if len(cores) < 2:
        return [cores]
    middle = len(cores) / 2
    near = [at for at in range(1, len(cores)) if abs(at - middle) <= len(cores) / 4]
    at = min(near, key=lambda at: (_shared(where, cores[at - 1], cores[at]), abs(at - middle), at))
    return [cores[:at], cores[at:]]


def _shared(where: Mapping[int, Site], one: int, other: int) -> int:
    """How many of the levels two CPUs have in common, from the outermost on."""
    pairs = list(zip(where.get(one, ()), where.get(other, ()), strict=False))
    return next((level for level, (a, b) in enumerate(pairs) if a != b), len(pairs))


def read_text(path: Path) -> str:
    """What a file of the kernel's says; nothing where there is none."""
    try:
        return path.read_text(errors="replace").strip().rstrip("\0")
    except OSError:
        return ""


def _listed(path: Path) -> list[int]:
    """The numbers of a list as the kernel writes it: ``0-3,8``."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", read_text(path)):
        found += range(int(first), int(last or first) + 1)
    return found
