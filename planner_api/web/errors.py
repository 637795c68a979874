"""Errors that only HTTP has."""

from collections.abc import Mapping, Sequence

from planner_api.errors import PlannerError


class HttpError(PlannerError):
    """What only HTTP knows: a body in a coding nobody reads, a method that a path does not have."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        causes: Sequence[str] = (),
    ) -> None:
        super().__init__(kind, detail, causes=causes)
        self.status = status
        self.headers = dict(headers or {})
