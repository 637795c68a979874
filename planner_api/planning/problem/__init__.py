"""What is planned: the problem as validated plain data, and how it is built from a model and a profile."""

from planner_api.planning.problem.problem import (
    BoolArray,
    FloatArray,
    IntArray,
    Lists,
    PlanningError,
    Problem,
    TransferMode,
)

__all__ = ["BoolArray", "FloatArray", "IntArray", "Lists", "PlanningError", "Problem", "TransferMode"]
