"""A linear program, with or without integers, and what HiGHS makes of it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import highspy
import numpy as np

from planner_api.planning.problem import PlanningError

TUNING = {
    # The start is better than what these find.
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
    # Our programs take some dozens of nodes: what pays off over thousands costs more than it saves.
    "mip_detect_symmetry": False,
    "mip_allow_restart": False,
    "mip_pscost_minreliable": 1,
    "mip_pool_age_limit": 1,
    "mip_pool_soft_limit": 1,
}
"""Options of HiGHS that halve the time of HOPE's subproblems."""

Terms = Iterable[tuple[int, float]]
"""A linear expression: (column, coefficient) pairs; a column stands at most once."""


class SolverFailed(PlanningError):
    """HiGHS ended in a status that carries no answer; the message says which."""


@dataclass
class Program:
    """A mixed-integer linear program that grows row by row; minimised."""

    cost: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    integer: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)

    def column(self, lower: float, upper: float, cost: float = 0.0, integer: bool = False) -> int:
        """Add a variable; returns its index."""
        self.cost.append(cost)
        self.lower.append(lower)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.cost) - 1

    def binary(self) -> int:
        """Add a variable that is 0 or 1."""
        return self.column(0.0, 1.0, integer=True)

    def at_least(self, terms: Terms, bound: float) -> None:
        """Add the row ``terms >= bound``."""
        self.row(terms, bound, math.inf)

    def row(self, terms: Terms, lower: float, upper: float) -> None:
        """Add the row ``lower <= terms <= upper``."""
        for column, value in terms:
            self.columns.append(column)
            self.values.append(value)
        self.starts.append(len(self.columns))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def solver(self, **options: float) -> highspy.Highs:
        """HiGHS with the program loaded, on one thread. Raises SolverFailed where it refuses that."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(self.row_lower)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.array(self.lower), np.array(self.upper)
        lp.row_lower_, lp.row_upper_ = np.array(self.row_lower), np.array(self.row_upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self.starts, dtype=np.int32)
        lp.a_matrix_.index_ = np.array(self.columns, dtype=np.int32)
        lp.a_matrix_.value_ = np.array(self.values)
        if any(self.integer):
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            lp.integrality_ = [kinds[integer] for integer in self.integer]
        solver = highspy.Highs()
        for name, value in {"output_flag": False, "threads": 1, "random_seed": 0, **options}.items():
            solver.setOptionValue(name, value)
        if solver.passModel(lp) == highspy.HighsStatus.kError:
            raise SolverFailed("HiGHS refused the model")
        return solver


@dataclass(frozen=True)
class Answer:
    """The best solution found, its objective, the proven bound, and whether it is proven optimal."""

    values: list[float]
    objective: float
    bound: float
    optimal: bool


def run(
    program: Program,
    *,
    seconds: float = math.inf,
    nodes: int | None = None,
    start: dict[int, float] | None = None,
    gap: float = 1e-6,
) -> Answer:
    """Solve a program on one thread.

    Args:
        program: what to minimise.
        seconds: time limit, at which HiGHS looks seldom (`PART_SECONDS`). The result then depends on the clock.
        nodes: limit on branch-and-bound nodes; deterministic.
        start: values of some columns of a feasible solution.
        gap: relative gap at which to stop.

    Raises:
        SolverFailed: infeasible, unbounded, out of time without a solution, or an error inside HiGHS.
    """
    options: dict[str, float] = {"mip_rel_gap": gap, "mip_abs_gap": 1e-6, **TUNING}
    if math.isfinite(seconds):
        options["time_limit"] = max(seconds, 0.0)
    if nodes is not None:
        options["mip_max_nodes"] = nodes
    solver = program.solver(**options)
    if start is not None:
        solver.setSolution(len(start), np.array(list(start), dtype=np.int32), np.array(list(start.values())))
    solver.run()
    if solver.getModelStatus() == highspy.HighsModelStatus.kNotset:
        # Another part of the process ran HiGHS with another number of threads: its scheduler must start anew.
        highspy.Highs.resetGlobalScheduler(True)
        solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise SolverFailed(f"HiGHS ended with '{solver.modelStatusToString(status)}' and no solution")
    return Answer(
        values=list(solver.getSolution().col_value),
        objective=info.objective_function_value,
        bound=info.mip_dual_bound if any(program.integer) else info.objective_function_value,
        optimal=status == highspy.HighsModelStatus.kOptimal,
    )
