"""Releases: a new version goes out in stages, is watched, and comes back by itself where it does harm."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from hope_schema.base import Contract, Count, Digest, Label, Rate, Share, VersionNumber
from hope_schema.registry import GroupSelector, PlainName, Reference

Rollout = Literal["at_once", "held", "staged"]
"""How new versions of a model's plans reach devices: as soon as they are there; when an admin releases them; or in a
release that the planner begins by itself."""
ReleaseState = Literal["running", "waiting", "paused", "done", "rolled_back"]
"""``waiting``: its stage is over, and an admin decides: the next one wants approval, or too few devices reported."""
ReleaseId = Annotated[str, Field(max_length=64, pattern=r"^r-[0-9a-f]{24}$")]


class RolloutPolicy(Contract):
    """``PUT /models/{model_hash}/rollout``."""

    rollout: Rollout


class ReleaseRequest(Contract):
    """``POST /releases``: let devices have what is new of a model, a few of them first.

    Without ``alias`` the newest versions of the model's plans go out, where older ones are served. With it, the alias
    (of the same name) comes to stand for the version that ``model`` means.

    Args:
        model: a reference (``classifier:3``), or the hash of a graph.
        group: only these devices; null: all.
        stages: the part of the group that has it, stage by stage; the last one is 1.
        reported: the part of a stage's devices that must have reported before the next one.
        hold_s: how long a stage lasts at least, in seconds.
        approval: whether every next stage waits for an admin.
        tolerance: a device counts as worse where it needs more than this fraction longer than before, and as better
            where it needs that much less.
        error_rate: how likely it may be that a release in which nothing is worse is taken back.
        again: also what was taken back before.
    """

    model: Reference
    alias: PlainName | None = None
    group: PlainName | None = None
    stages: Annotated[tuple[Share, ...], Field(min_length=1, max_length=20)] = (0.01, 0.1, 0.5, 1.0)
    reported: Share = 0.5
    hold_s: Annotated[float, Field(ge=0.0, le=30 * 86_400.0)] = 3600.0
    approval: bool = False
    tolerance: Annotated[float, Field(ge=0.0, le=10.0)] = 0.05
    error_rate: Annotated[float, Field(ge=1e-9, le=0.5)] = 0.001
    again: bool = False

    @model_validator(mode="after")
    def _stages_rise(self) -> ReleaseRequest:
        if list(self.stages) != sorted(set(self.stages)) or self.stages[-1] != 1.0:
            raise ValueError("stages must rise and end with 1")
        return self


class Comparison(Contract):
    """Devices before and after: how many are worse than they were, and how many better (the others are as they were).

    ``evidence`` is the decimal logarithm of how much the counts speak for harm; the release comes back where that of
    all comparisons together reaches ``-log10(error_rate)``.
    """

    worse: Count
    better: Count
    evidence: float


class Release(Contract):
    """A release and how it goes.

    ``share`` is the part of the group that has it now. ``devices`` is about how many the group has, ``reported`` how
    many reported about the new version, ``wanted`` how many must have for this stage to end. ``reason`` is what it
    waits for, or why it ended. ``before`` and ``after`` are the versions of an alias (null where plans go out).
    """

    release_id: ReleaseId
    model: str
    model_hash: Digest
    alias: PlainName | None
    before: VersionNumber | None
    after: VersionNumber | None
    group: PlainName | None
    selector: GroupSelector
    stages: tuple[Share, ...]
    stage: Count
    share: Rate
    state: ReleaseState
    reason: str
    approval: bool
    tolerance: float
    error_rate: float
    hold_s: float
    devices: Count
    wanted: Count
    reported: Count
    plans: Count
    latency: Comparison
    failures: Comparison
    answers: Comparison
    deadlines: Comparison
    evidence: float
    created_at: AwareDatetime
    stage_since: AwareDatetime
    ended_at: AwareDatetime | None


class ReleasePage(Contract):
    """Releases, newest first; ``next`` is the ``before`` of the following page, null on the last."""

    releases: tuple[Release, ...]
    next: ReleaseId | None = None


class ReleasePart(Contract):
    """What goes out to one kind of device: a plan from one version to another, or all plans of a SoC for an alias."""

    soc: Label
    plan_id: Label | None
    before: VersionNumber
    after: VersionNumber
    reported: Count
    latency: Comparison
    failures: Comparison
    answers: Comparison
    deadlines: Comparison


class ReleasePartPage(Contract):
    """Parts of a release in the order of their plans or SoCs; ``next`` is the ``after`` of the following page."""

    parts: tuple[ReleasePart, ...]
    next: Label | None = None
