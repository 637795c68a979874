"""Profiles to plan on: measured phones (``<phone>--<model>.json``) as planning problems."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from planner_api.planning.problem import Machine, Problem
from planner_api.planning.problem.transfers import elements, fit

CPU, GPU = 0, 1
PAPERS_CPU = {"redmi": "cpu_big_4", "huawei_p40": "cpu_big_2"}
"""The cores that the paper used on each phone."""


class BadProfile(ValueError):
    """A profile file that cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class PhoneProfile:
    """One ``<phone>--<model>.json`` and, where present, the authors' placements beside it.

    ``plans`` maps ``<method>/<cpu>`` to a letter per op (C = cpu, G = gpu).
    """

    stem: str
    ops: list[dict[str, Any]]
    shapes: dict[str, list[int]]
    transfers: list[dict[str, Any]]
    plans: dict[str, str]

    @property
    def model(self) -> str:
        """The model's name: what follows the phone's."""
        return self.stem.split("--", 1)[-1]

    @property
    def phone(self) -> str:
        """The phone's name: what stands before the model's."""
        return self.stem.split("--", 1)[0]

    @property
    def types(self) -> list[str]:
        """The type of each op, as far as its name tells it."""
        return [op_type(op["name"]) for op in self.ops]

    @property
    def keys(self) -> tuple[str, ...]:
        """Every CPU configuration that some op was measured on, in the order of the file."""
        return tuple(dict.fromkeys(key for op in self.ops for key in op["latency_us"] if key != "gpu"))

    @property
    def usual(self) -> str:
        """The CPU configuration to plan with where none is asked for: the paper's, else the first of the most cores."""
        paper = PAPERS_CPU.get(self.phone)
        cores = {key: int(found[0]) if (found := re.findall(r"\d+$", key)) else 0 for key in self.complete}
        return paper if paper in cores else max(cores, key=lambda key: cores[key])

    @property
    def complete(self) -> tuple[str, ...]:
        """Of ``cpus``, those that every op was measured on; all of them where that is none."""
        whole = tuple(key for key in self.cpus if all(op["latency_us"].get(key) is not None for op in self.ops))
        return whole or self.cpus

    @property
    def cpus(self) -> tuple[str, ...]:
        """The big cluster's configurations; every configuration where none is called big."""
        big = tuple(key for key in self.keys if key.startswith("cpu_big_"))
        return big or self.keys


def load(path: Path) -> PhoneProfile:
    """Read a profile.

    Raises:
        BadProfile: the file is not readable, not JSON, or lacks a key.
    """
    beside = path.with_suffix(".plans.json")
    try:
        content = json.loads(path.read_text())
        plans = json.loads(beside.read_text())["placements"] if beside.exists() else {}
        ops, shapes, transfers = content["ops"], content["tensors"], content["transfer_us"]
        if not any(key != "gpu" for op in ops for key in op["latency_us"]):
            raise BadProfile(f"{path}: the profile has no op that was measured on a CPU")
        for op in ops:
            if not (isinstance(op["name"], str) and isinstance(op["latency_us"], dict)):
                raise TypeError("'name' or 'latency_us'")
            for tensor in (*op["inputs"], *op["outputs"]):
                elements(shapes[tensor])
        for row in transfers:
            elements(row["shape"])
            float(row["gpu_to_cpu"]), float(row["cpu_to_gpu"])
        for key, letters in plans.items():
            if len(letters) != len(ops) or set(letters) - set("CG"):
                raise BadProfile(f"{beside}: placement '{key}' must give C or G for each of {len(ops)} ops")
    except BadProfile:
        raise
    except KeyError as error:
        raise BadProfile(f"{path}: not a phone profile, {error} is missing") from error
    except (OSError, ValueError) as error:
        raise BadProfile(f"{path}: {error}") from error
    except (TypeError, AttributeError) as error:
        raise BadProfile(f"{path}: not a phone profile, something is of the wrong kind ({error})") from error
    return PhoneProfile(path.stem, ops, shapes, transfers, plans)


def find(folder: Path, models: Collection[str] = ()) -> list[PhoneProfile]:
    """Every profile of a folder, or those whose model or file stem is named.

    Raises:
        BadProfile: the folder is missing or holds no profile, or a name matches none.
    """
    if not folder.is_dir():
        raise BadProfile(f"{folder}: there is no such folder")
    found = [load(path) for path in sorted(folder.glob("*--*.json")) if not path.name.endswith(".plans.json")]
    if not found:
        raise BadProfile(f"{folder}: no <phone>--<model>.json here")
    for name in models:
        if not any(name in (profile.model, profile.stem) for profile in found):
            raise BadProfile(f"no profile of '{name}' in {folder}, which has {', '.join(p.stem for p in found)}")
    return [profile for profile in found if not models or profile.model in models or profile.stem in models]


TYPES = {
    "Conv2D": "Conv",
    "separable_conv2d": "Conv",
    "depthwise": "DepthwiseConv",
    "AvgPool": "AveragePool",
    "AvgPool2D": "AveragePool",
    "MaxPool": "MaxPool",
    "Relu": "Relu",
    "add": "Add",
    "concat": "Concat",
    "MatMul": "MatMul",
    "FusedBatchNorm": "BatchNormalization",
    "FusedBatchNormV3": "BatchNormalization",
    "Mean": "Mean",
    "Softmax": "Softmax",
}
"""How the authors' converter ends the names of ops, to the types of ONNX."""


def op_type(name: str) -> str:
    """The type of an op of the authors' networks: ``Layout`` between two layouts, else by the end of its name."""
    end = re.sub(r"(_\d+)+$", "", name.rsplit("/", 1)[-1])
    return "Layout" if "___tr" in name else TYPES.get(end, end)


def on_two_clusters(profile: PhoneProfile, big: str, little: str) -> Problem:
    """Two clusters of one CPU: they share memory and layout, so that nothing is ever moved (HOPE section 5.5).

    Raises:
        BadProfile: nothing was measured on one of them.
    """
    problem = phone_problem(profile, big)
    if little not in profile.keys:
        raise BadProfile(f"{profile.stem} was not measured on '{little}', only on {', '.join(profile.keys)}")
    return replace(
        problem,
        machine=Machine.apart(("big", "little")),
        latency_us=np.array([[_latency(row, big), _latency(row, little)] for row in profile.ops]),
        transfer_us=np.zeros_like(problem.transfer_us),
    )


def at_frequency(problem: Problem, part: float) -> Problem:
    """The CPU at a part of its top frequency: its ops take longer in proportion, the GPU and the moves as long."""
    return replace(problem, latency_us=problem.latency_us / [part, 1.0])


def phone_problem(profile: PhoneProfile, cpu: str) -> Problem:
    """One CPU configuration and the GPU, as the profile measured them.

    Graph inputs and outputs are free on both sides; transfers that were not measured are fitted per direction.

    Raises:
        BadProfile: nothing was measured on the CPU configuration, or no transfer was.
        PlanningError: the figures make no problem, e.g. an op without any latency.
    """
    if cpu not in profile.keys:
        raise BadProfile(f"{profile.stem} was not measured on '{cpu}', only on {', '.join(profile.keys)}")
    names = tuple(profile.shapes)
    index = {name: tensor for tensor, name in enumerate(names)}
    costs = {
        direction: {tuple(row["shape"]): float(row[direction]) for row in profile.transfers}
        for direction in ("cpu_to_gpu", "gpu_to_cpu")
    }
    producer = np.full(len(names), -1, dtype=np.int64)
    for op, row in enumerate(profile.ops):
        for name in row["outputs"]:
            producer[index[name]] = op
    read = {name for row in profile.ops for name in row["inputs"]}
    transfer = np.zeros((len(names), 3, 3))
    for direction, source, target in (("cpu_to_gpu", CPU, GPU), ("gpu_to_cpu", GPU, CPU)):
        known = costs[direction]
        if not known:
            raise BadProfile(f"{profile.stem}: no transfer was measured")
        line = fit([elements(shape) for shape in known], list(known.values()))
        for name, tensor in index.items():
            shape = tuple(profile.shapes[name])
            transfer[tensor, source, target] = known.get(shape, line.cost_us(elements(shape)))
    return Problem(
        machine=Machine.apart(("cpu", "gpu")),
        ops=tuple(row["name"] for row in profile.ops),
        latency_us=np.array([[_latency(row, cpu), _latency(row, "gpu")] for row in profile.ops]),
        producer=producer,
        reads=tuple(tuple(dict.fromkeys(index[name] for name in row["inputs"])) for row in profile.ops),
        is_output=np.array([name not in read and producer[index[name]] >= 0 for name in names]),
        transfer_us=transfer,
        tensors=names,
    )


def _latency(op: dict[str, Any], key: str) -> float:
    """Microseconds; an op that has no figure, or null, does not run there."""
    value = op["latency_us"].get(key)
    return math.inf if value is None else float(value)
