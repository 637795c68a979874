"""The trial at load: the plan beside whole networks on single processors and on the runtimes as their users run them.

All compute the same; whoever is fastest here and now will answer. The order is settled in stages: a few rounds for
everyone, more for those who may still be the best.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Final

import numpy as np

from agent_sdk.engine import Executor
from agent_sdk.engine.ports import Outputs
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import DeviceClosedError, ProcessorError, RunTimeoutError, SegmentFailedError
from agent_sdk.machine.timing import take_turns
from agent_sdk.machine.witness import Witness, calm
from agent_sdk.runtimes.base import PACKAGES, Package

PLAN: Final = "plan"
"""The contender that stands for the plan; it wins ties."""
WORTH: Final = 0.97
"""How many times what a runtime as its own users run it takes anything else may take to answer instead: less is within
a trial's error."""
FAILURES: Final = (SegmentFailedError, ProcessorError, DeviceClosedError)
"""What a run raises where its processors failed, or hang: others may still answer."""
STAGES: Final = ((3, inf), (4, 1.3), (9, 1.05))
"""Rounds of each stage, and how many times the best's median a contender may take to have part in it."""
SHORT_US: Final = 20_000.0
"""A plan that takes less goes on though nobody is near it: what it takes is told, and a GPU's first runs are slow."""
PATIENCE_S: Final = 2.0
"""After so long a stage makes no more rounds than it needs at least."""
FIRST_RUN_S: Final = 60.0
"""The longest that a network's first run may take: a runtime that hangs must not keep a session from opening."""


@dataclass(frozen=True)
class Trial:
    """What a trial found.

    Attributes:
        us: what each contender takes, microseconds, all on the scale of the last stage.
        traces: of the runs that this rests on, in the order in which they count.
        calm: whether the cores were undisturbed, so that the figures are worth keeping.
        failures: who could not run, and why.
    """

    us: Mapping[str, float]
    traces: Mapping[str, Sequence[Trace]] = field(repr=False)
    calm: bool
    failures: Mapping[str, Exception]

    @property
    def best(self) -> str:
        return first_choice(self.us)


def first_choice(us: Mapping[str, float]) -> str:
    """The fastest, with ``WORTH`` against the runtimes as their users run them; of equals the plan, then by name."""

    def rank(name: str) -> tuple[float, bool, str]:
        return us[name] * (WORTH if plain_runtime(name) else 1.0), name != PLAN, name

    return min(us, key=rank)


def plain_runtime(name: str) -> Package | None:
    """The runtime of a contender that is one as its own users run it, on any number of threads."""
    return next((runtime for runtime in PACKAGES if name.partition("/")[0] == runtime), None)


def crowded(name: str) -> bool:
    """Whether a contender's own threads wait for one another's cores: a plan's lanes for its gangs; and as many threads
    as there are cores, bound to none, as runtimes have that run as their users run them.
    """
    return name == PLAN or plain_runtime(name) is not None


def plainest(us: Mapping[str, float]) -> list[str]:
    """The fastest of each runtime as its own users run it: no session may be slower than these."""
    fastest: dict[Package, str] = {}
    for name in sorted(us, key=lambda name: us[name]):
        if (package := plain_runtime(name)) is not None:
            fastest.setdefault(package, name)
    return list(fastest.values())


def best_plan(trials: Sequence[Trial]) -> int:
    """Which of several trials tried the best plan: by how long it took beside the best of those it took turns with.

    Of those that are as good as the best, within ``WORTH``, the latest: it was made with what the others took.
    """
    took = []
    for trial in trials:
        rivals = [us for name, us in trial.us.items() if name != PLAN]
        took.append(trial.us.get(PLAN, inf) / min(rivals, default=1.0))
    return max(index for index, ratio in enumerate(took) if ratio * WORTH <= min(took))


def warm(
    contenders: Mapping[str, Executor], inputs: Mapping[str, np.ndarray]
) -> tuple[dict[str, Outputs], dict[str, Exception]]:
    """Run each contender once, so that its memory is there.

    Returns the answers, and who failed or took longer than ``FIRST_RUN_S``.
    """
    answers: dict[str, Outputs] = {}
    failures: dict[str, Exception] = {}
    for name, executor in contenders.items():
        try:
            answers[name] = executor.run(inputs, timeout_s=FIRST_RUN_S)[0]
        except (*FAILURES, RunTimeoutError) as error:
            failures[name] = error
    return answers, failures


def hold_trial(
    contenders: Mapping[str, Executor],
    inputs: Mapping[str, np.ndarray],
    stages: Sequence[tuple[int, float]] | None = None,
) -> Trial:
    """Time contenders that have run before in turns. Raises the first one's failure where all of them fail."""
    found: list[dict[str, float]] = []
    traces: dict[str, list[Trace]] = {}
    failures: dict[str, Exception] = {}
    worst = 1.0
    names = list(contenders)
    with Witness() as witness:
        for rounds, behind in stages or STAGES:
            best = min(found[-1].values()) if found else 0.0
            names = [name for name in names if not found or found[-1][name] <= behind * best]
            short = names == [PLAN] and bool(found) and found[-1][PLAN] < SHORT_US
            if found and len(names) < 2 and not short:
                break
            turns = take_turns(
                {name: partial(contenders[name].traced, inputs) for name in names},
                rounds=rounds,
                most=2 * rounds,
                share=time.monotonic() + PATIENCE_S,
                witness=witness,
                failing=FAILURES,
                alone=lambda trace: trace.alone,
                crowded=crowded,
            )
            failures |= turns.failures
            names = [name for name in names if name not in failures]
            if not names:
                break
            worst = max(worst, turns.disturbance)
            traces |= {name: [turn.result for turn in turns.counted[name]] for name in names}
            found.append({name: statistics.median(trace.total_us for trace in traces[name]) for name in names})
    us = {name: value for name, value in on_one_scale(found).items() if name not in failures}
    if not us:
        raise next(iter(failures.values()))
    return Trial(us, traces, calm(worst), failures)


def on_one_scale(stages: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians of several stages on the scale of the last one, by those who had part in it.

    The machine may have become slower or faster meanwhile, which changes nothing between those who took turns.
    """
    last = stages[-1] if stages else {}
    us: dict[str, float] = {}
    for stage in stages:
        scale = min(last.values()) / min(stage[name] for name in last)
        us |= {name: value * scale for name, value in stage.items()}
    return us
