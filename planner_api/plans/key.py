"""What makes two plan requests the same."""

from __future__ import annotations

from hope_schema import PlanRequest
from hope_schema.hashing import digest


def normalised(request: PlanRequest) -> PlanRequest:
    """Return the request with its processors sorted and without repetition: their order changes no plan."""
    if request.processors is None:
        return request
    return request.model_copy(update={"processors": tuple(sorted(set(request.processors)))})


def plan_id(request: PlanRequest) -> str:
    """Return the id of the plan under the request's key; the same for every device that asks, on every replica."""
    key = normalised(request).model_dump(mode="json")
    return f"p-{digest(key)[:40]}"
