"""The SoC read from sysfs trees of other machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_sdk.machine.cores import name_cores, parse_cores
from agent_sdk.machine.soc import core_classes, read_soc


def tree(root: Path, files: dict[str, list[int | str]]) -> Path:
    """A sysfs tree: file name under cpuN/ to its value per core."""
    for name, values in files.items():
        for core, value in enumerate(values):
            path = root / f"cpu{core}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
    return root


@pytest.mark.parametrize(
    ("capacities", "expected"),
    [
        ([1024] * 4, "core core core core"),
        ([446, 446, 446, 446, 1024, 1024], "little little little little big big"),
        ([325, 325, 828, 1024], "little little big prime"),
        ([1000, 1024, 1010, 1024], "core core core core"),
        ([100, 200, 400, 800], "class3 class2 class1 class0"),
    ],
)
def test_classes_follow_capacity(tmp_path: Path, capacities: list[int], expected: str) -> None:
    """Cores of clearly different capacity are of different classes, nearly equal ones are not."""
    root = tree(tmp_path, {"cpu_capacity": list(capacities)})
    classes = core_classes(root, frozenset(range(len(capacities))))
    assert " ".join(classes[core] for core in sorted(classes)) == expected


def test_clocks_tell_where_capacity_is_absent(tmp_path: Path) -> None:
    """A hybrid x86 shows no capacity but different highest clocks."""
    root = tree(tmp_path, {"cpufreq/cpuinfo_max_freq": [5_200_000, 5_200_000, 3_900_000, 3_900_000]})
    assert core_classes(root, frozenset(range(4))) == {0: "big", 1: "big", 2: "little", 3: "little"}


def test_only_usable_cores_count(tmp_path: Path) -> None:
    """A process confined to the little cores sees one class of equal cores."""
    root = tree(tmp_path, {"cpu_capacity": [446, 446, 1024, 1024]})
    assert read_soc(root, frozenset({0, 1})).core_class == {0: "core", 1: "core"}


def test_the_frequency_names_governor_and_clock_per_class(tmp_path: Path) -> None:
    """Another governor or another clock limit is another operating point, so another profile."""
    files: dict[str, list[int | str]] = {
        "cpu_capacity": [446, 1024],
        "cpufreq/scaling_governor": ["schedutil", "performance"],
        "cpufreq/scaling_max_freq": [1_800_000, 2_400_000],
    }
    soc = read_soc(tree(tmp_path, files), frozenset({0, 1}))
    assert soc.frequency == "little-schedutil-1800mhz+big-performance-2400mhz"
    assert read_soc(tmp_path / "none", frozenset({0})).frequency == "fixed"


def test_this_machine_has_legal_labels() -> None:
    """Whatever the machine calls itself, the name can stand in a URL and in a profile's key."""
    soc = read_soc()
    for label in (soc.name, soc.frequency, *soc.core_class.values()):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:+@/\-]{0,127}", label)


@pytest.mark.parametrize(
    ("cores", "name"), [([0], "0"), ([0, 1], "0-1"), ([0, 2], "0+2"), ([0, 1, 2, 5, 7, 8], "0-2+5+7-8")]
)
def test_core_names(cores: list[int], name: str) -> None:
    """Runs of cores are written as ranges, and read again."""
    assert name_cores(cores) == name
    assert parse_cores(name) == set(cores)


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0,1", "0++1", "99999", "0-1-2", "1 "])
def test_what_names_no_cores(text: str) -> None:
    """Anything else is no set of cores."""
    assert parse_cores(text) == frozenset()
