"""Profiles to plan on: measured phones (``<phone>--<model>.json``) as planning problems."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner_api.planning.problem import Problem, TransferMode
from planner_api.planning.transfers import elements, fit

CPU, GPU = 0, 1


class BadProfile(ValueError):  # noqa: N818 - says what it is
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
    def cpus(self) -> tuple[str, ...]:
        """The CPU configurations that every op was measured on, in the file's order."""
        return tuple(
            key
            for key in self.ops[0]["latency_us"]
            if key.startswith("cpu_big_") and all(key in op["latency_us"] for op in self.ops)
        )


def load(path: Path) -> PhoneProfile:
    """Read a profile.

    Raises:
        BadProfile: the file is not readable, not JSON, or lacks a key.
    """
    try:
        content = json.loads(path.read_text())
        ops, shapes, transfers = content["ops"], content["tensors"], content["transfer_us"]
        if not ops:
            raise BadProfile(f"{path}: the profile has no ops")
        for op in ops:
            for tensor in (*op["inputs"], *op["outputs"]):
                shapes[tensor]
            op["name"], op["latency_us"]["gpu"]
        for row in transfers:
            row["shape"], row["gpu_to_cpu"], row["cpu_to_gpu"]
        beside = path.with_suffix(".plans.json")
        plans = json.loads(beside.read_text())["placements"] if beside.exists() else {}
    except (OSError, json.JSONDecodeError) as error:
        raise BadProfile(f"{path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise BadProfile(f"{path}: not a phone profile, {error} is missing or of the wrong kind") from error
    for key, letters in plans.items():
        if len(letters) != len(ops):
            raise BadProfile(f"{beside}: placement '{key}' lists {len(letters)} ops, the profile has {len(ops)}")
    return PhoneProfile(path.stem, ops, shapes, transfers, plans)


def phone_problem(profile: PhoneProfile, cpu: str, mode: TransferMode = "blocking") -> Problem:
    """One CPU configuration and the GPU, as the profile measured them.

    Graph inputs and outputs are free on both sides; transfers that were not measured are fitted per direction.

    Raises:
        BadProfile: the CPU configuration was not measured for some op.
    """
    for op in profile.ops:
        if cpu not in op["latency_us"]:
            raise BadProfile(f"{profile.stem}: op '{op['name']}' was not measured on '{cpu}'")
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
        line = fit([elements(shape) for shape in known], list(known.values()))
        for name, tensor in index.items():
            shape = tuple(profile.shapes[name])
            transfer[tensor, source, target] = known.get(shape, line.cost_us(elements(shape)))
    return Problem(
        ops=tuple(row["name"] for row in profile.ops),
        processors=("cpu", "gpu"),
        latency_us=np.array([[row["latency_us"][cpu], row["latency_us"]["gpu"]] for row in profile.ops], dtype=float),
        conflicts=np.eye(2, dtype=bool),
        producer=producer,
        reads=tuple(tuple(dict.fromkeys(index[name] for name in row["inputs"])) for row in profile.ops),
        is_output=np.array([name not in read and producer[index[name]] >= 0 for name in names]),
        transfer_us=transfer,
        mode=mode,
        tensors=names,
    )
