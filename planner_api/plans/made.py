"""What the child is asked for that makes a plan, and what it answers.

Apart from the jobs: their settings and logs take a tenth of the time in which the child loads, which uses neither.
"""

import msgspec

RestsOn = tuple[tuple[tuple[str, str], int], ...]
"""SoC, frequency and version of profiles."""


class PlanOrder(msgspec.Struct):
    """What is planned: the request, its profiles as JSON, a graph per job, compressed, and the budget.

    It ``rests_on`` these profiles, the device's first; ``version`` is the newest so far. A better plan follows one that
    is ``provisional``. ``before`` is the ``PlanReply`` of the version before, compressed; empty: there is none.
    """

    request: bytes
    profiles: tuple[bytes, ...]
    graphs: tuple[bytes, ...]
    budget_s: float
    version: int
    provisional: bool
    rests_on: RestsOn
    before: bytes = b""


class Made(msgspec.Struct):
    """A plan as JSON, and what is said of it in columns.

    ``figures`` are those of the networks as it cuts them, compressed; None: it cuts none.
    """

    plan: bytes
    makespan_us: float
    lower_bound_us: float
    gap: float
    found_by: str
    solve_us: float
    figures: bytes | None
