"""The measured phones for tests: found beside the repository, or the test is skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.profiles import PhoneProfile, load, phone_problem
from planner_api.planning import Problem

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "phones"


def phone(stem: str) -> PhoneProfile:
    """A profile by its file's stem; skips the test where the folder is absent."""
    path = FOLDER / f"{stem}.json"
    if not path.exists():
        pytest.skip(f"no measured phones beside the repository ({path.name})")
    return load(path)


def collapsed_module(profile: PhoneProfile, cpu: str, module: str) -> Problem:
    """One Inception module, each branch collapsed into one op, its input free everywhere."""
    whole = phone_problem(profile, cpu)
    members: dict[str, list[int]] = {}
    for op, name in enumerate(whole.ops):
        if f"/{module}/" in name:
            members.setdefault(name.split(f"/{module}/")[1].split("/")[0], []).append(op)
    join = members.pop("concat")[0]
    latency = [whole.latency_us[ops].sum(axis=0) for ops in members.values()] + [whole.latency_us[join]]
    home = {op: branch for branch, ops in enumerate(members.values()) for op in ops}
    joined = sorted(whole.reads[join], key=lambda tensor: home[int(whole.producer[tensor])])
    return Problem(
        ops=(*members, "concat"),
        machine=whole.machine,
        latency_us=np.array(latency),
        producer=np.arange(len(joined), dtype=np.int64),
        reads=(*((),) * len(joined), tuple(range(len(joined)))),
        is_output=np.zeros(len(joined), dtype=bool),
        transfer_us=whole.transfer_us[joined],
        tensors=tuple(whole.tensors[tensor] for tensor in joined),
    )
