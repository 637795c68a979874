"""Core groups, from sysfs trees of machines that are not here: one core to 256, caches, nodes, siblings, quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sdk.machine.cores import name_cores
from agent_sdk.machine.soc import read_soc
from agent_sdk.machine.topology import MAX_GROUPS, affordable, core_groups, cpu_quota, halves, locate


def tree(
    root: Path,
    cores: int,
    *,
    siblings: Callable[[int], Sequence[int]] | None = None,
    l2: int = 0,
    l3: int = 0,
    node: int = 0,
    capacity: Sequence[int] = (),
) -> Path:
    """A sysfs tree: how many neighbouring CPUs share a second- and a third-level cache and a NUMA node."""

    def write(path: Path, text: object) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def block(core: int, size: int) -> str:
        first = core // size * size
        return f"{first}-{first + size - 1}"

    for core in range(cores):
        cpu = root / f"cpu{core}"
        own = siblings(core) if siblings else [core]
        write(cpu / "topology/thread_siblings_list", ",".join(map(str, own)))
        for index, (level, size) in enumerate(((2, l2), (3, l3))):
            if size:
                write(cpu / f"cache/index{index}/level", level)
                write(cpu / f"cache/index{index}/type", "Unified")
                write(cpu / f"cache/index{index}/shared_cpu_list", block(core, size))
        if node:
            (cpu / f"node{core // node}").mkdir(parents=True, exist_ok=True)
        if capacity:
            write(cpu / "cpu_capacity", capacity[core])
    return root


def names(sysfs: Path, cores: int) -> list[str]:
    """The groups offered on a machine, as they are written."""
    soc = read_soc(sysfs, frozenset(range(cores)), root=sysfs / "none")
    return [name_cores(sorted(group)) for group in core_groups(soc.core_class, soc.sites)]


def test_sixteen_equal_cores(tmp_path: Path) -> None:
    """All, halves, quarters, pairs, and some single cores."""
    found = names(tree(tmp_path, 16, l3=16), 16)
    assert found[:7] == ["0-15", "0-7", "8-15", "0-3", "4-7", "8-11", "12-15"]
    assert found[7:15] == ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"]
    assert found[15:] == [str(core) for core in range(8)]


def test_groups_end_where_caches_and_nodes_do(tmp_path: Path) -> None:
    """Numbered so that neighbours in number are not neighbours on the chip: groups keep together what shares most."""
    interleaved = tree(tmp_path, 8)
    for core in range(8):
        (interleaved / f"cpu{core}/node{core % 2}").mkdir()
    assert names(interleaved, 8)[:3] == ["0-7", "0+2+4+6", "1+3+5+7"]
    uneven = tree(tmp_path / "uneven", 10, node=6)
    assert names(uneven, 10)[:3] == ["0-9", "0-5", "6-9"]
    clusters = tree(tmp_path / "clusters", 6, l2=2)
    assert {"0-1", "2-3", "4-5"} <= set(names(clusters, 6))


def test_siblings_are_one_core(tmp_path: Path) -> None:
    """Gangs take one thread per physical core; all threads together are offered beside."""
    halved = tree(tmp_path, 8, siblings=lambda core: (core % 4, core % 4 + 4))
    assert names(halved, 8) == ["0-3", "0-1", "2-3", "0", "1", "2", "3", "0-7"]


def test_a_phone(tmp_path: Path) -> None:
    """Each cluster has its own ladder, and all cores are offered together."""
    phone = tree(tmp_path, 6, capacity=[446] * 4 + [1024] * 2)
    assert set(names(phone, 6)) == {"0-3", "0-1", "2-3", "0", "1", "2", "3", "4-5", "4", "5", "0-5"}


def test_one_core(tmp_path: Path) -> None:
    """A gang of all cores would be the core itself: it is listed once."""
    assert names(tree(tmp_path, 1), 1) == ["0"]


@pytest.mark.parametrize("cores", [2, 3, 12, 48, 64, 96, 128, 256, 512])
def test_the_number_of_groups_is_bounded(cores: int, tmp_path: Path) -> None:
    """However many cores there are, there are few groups, and those of one size lie apart."""
    soc = read_soc(tree(tmp_path, cores, l3=8, node=64), frozenset(range(cores)), root=tmp_path / "none")
    groups = core_groups(soc.core_class, soc.sites)
    assert len(groups) == len(set(groups)) <= MAX_GROUPS + 2
    assert max(map(len, groups)) == min(cores, 256)
    assert min(map(len, groups)) == 1
    for size in {len(group) for group in groups}:
        alike = [group for group in groups if len(group) == size]
        assert len(frozenset().union(*alike)) == size * len(alike)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.lists(st.integers(0, 1), min_size=20, max_size=20))
def test_halves_share_nothing_and_leave_nothing_out(caches: list[int], nodes: list[int]) -> None:
    """Whatever the machine looks like, both sides together are the group, and neither is less than a quarter of it."""
    where = {core: (nodes[core], cache, core) for core, cache in enumerate(caches)}
    parts = halves(where, list(where))
    assert [core for part in parts for core in part] == list(where)
    assert all(len(part) >= len(where) // 4 for part in parts)


@pytest.mark.parametrize(("quota", "kept"), [(None, 4), (4.0, 4), (2.5, 2), (1.0, 1), (0.3, 1)])
def test_a_quota_pays_for_neighbouring_physical_cores(quota: float | None, kept: int, tmp_path: Path) -> None:
    """A gang larger than the quota would be stopped for most of every period; one core there is in any case."""
    where = locate(tree(tmp_path, 4, l2=2), range(4))
    assert affordable(where, range(4), quota) == set(range(kept))
    pairs = locate(tree(tmp_path / "pairs", 4, siblings=lambda core: (core // 2 * 2, core // 2 * 2 + 1)), range(4))
    assert affordable(pairs, range(4), 2.0) == {0, 2}


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "30000 100000"}, 0.3),
        ("0::/a/b\n", {"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "250000 100000"}, 2.5),
        ("0::/a\n", {"sys/fs/cgroup/a/cpu.max": "400000 100000", "sys/fs/cgroup/cpu.max": "100000 100000"}, 1.0),
        (
            "4:cpu,cpuacct:/a\n0::/\n",
            {
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ("4:cpu:/\n", {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "9"}, None),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "nonsense"}, None),
        ("0::/../../etc\n", {"etc/cpu.max": "1 100000"}, None),
        ("", {}, None),
    ],
)
def test_the_tightest_quota_counts(groups: str, files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    """The process's own control group's, or one above it, in either version; whatever else stands there is none."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == quota


def test_a_quota_below_a_core_leaves_one_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One clear sentence, and one processor."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("30000 100000\n")
    soc = read_soc(tree(tmp_path / "cpus", 4), frozenset(range(4)), root=tmp_path)
    assert soc.cores == (0,)
    assert "1 of 4 cores" in caplog.text
    assert "0.3 cores" in caplog.text
