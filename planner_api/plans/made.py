"""What the child is asked for that makes a plan, and what it answers.

Apart from the jobs: their settings and logs take a tenth of the time in which the child loads, which uses neither.
"""

import msgspec


class PlanOrder(msgspec.Struct):
    """What is planned: the request, its profiles as JSON, a graph per job, compressed, and the budget.

    ``before`` is the ``PlanReply`` of the version before, compressed; empty: there is none.
    """

    request: bytes
    profiles: tuple[bytes, ...]
    graphs: tuple[bytes, ...]
    budget_s: float
    before: bytes = b""


class Made(msgspec.Struct):
    """A plan as JSON, and what is said of it in columns.

    ``rests_on`` are SoC, frequency and version of each of its profiles, the device's first.
    """

    plan: bytes
    rests_on: tuple[tuple[tuple[str, str], int], ...]
    makespan_us: float
    lower_bound_us: float
    gap: float
    found_by: str
    solve_us: float
