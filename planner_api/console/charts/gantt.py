"""A plan as lanes of bars: one lane per processor, and one per resource that carries transfers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hope_schema import Cause, Plan, Step, Transfer
from hope_schema.axis import Tick, place, ticks
from hope_schema.wording import TITLES, duration

NARROW = 0.12
"""Bars below this width, in per cent, are drawn together with their neighbours of one cause."""
LETTER = 0.64
"""Width of a letter of a label, in per cent of a chart as wide as most are."""
MOST_ZOOM = 32
MARKS = 8
TO_HOST = "to host"


@dataclass(frozen=True)
class Stretch:
    """A stretch of a lane; ``at`` and ``width`` in per cent of the axis. ``steps``: the step it is, or several.

    ``label`` is what is written on it where it is wide enough.
    """

    at: float
    width: float
    kind: str
    title: str
    steps: tuple[int, ...] = ()
    label: str = ""

    @property
    def labelled(self) -> bool:
        """Whether the label may fit at the largest magnification; the page finds out at which ones it does."""
        return bool(self.label) and LETTER * (len(self.label) + 2) <= self.width * MOST_ZOOM


@dataclass(frozen=True)
class Lane:
    """What one processor, or one carrier of transfers, does. ``busy`` is the share of the makespan."""

    name: str
    kind: str
    bars: tuple[Stretch, ...]
    moves: tuple[Stretch, ...]
    busy: float


@dataclass(frozen=True)
class Gantt:
    """The lanes of a plan on their axis; its end and its lower bound stand at ``makespan`` and ``bound`` per cent."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    makespan: float
    bound: float
    causes: dict[Cause, int]
    idle: tuple[str, ...]


def draw(plan: Plan, span_us: float = 0.0, names: Sequence[str] = ()) -> Gantt:
    """Return the lanes of a plan, on an axis that reaches its end and at least ``span_us``.

    ``names``: of the networks of a joint plan's runs, said with each of their ops.
    """
    # A mean may be before the end of the run that is drawn, where ops slow each other.
    ends = (*(step.finish_us for step in plan.steps), *(move.finish_us for move in plan.transfers))
    span = max(plan.makespan_us, span_us, *ends)
    lanes = []
    for processor in plan.processors_used:
        steps = sorted((step for step in plan.steps if step.processor == processor), key=lambda step: step.start_us)
        ids = {step.id for step in steps}
        moves = [move for move in plan.transfers if move.reader in ids and move.finish_us > move.start_us]
        busy = _covered((step.start_us, step.finish_us) for step in steps)
        drawn = _apart(_steps(steps, span, names)), _apart(_moves(moves, span))
        lanes.append(Lane(processor, "processor", *drawn, _share(busy, plan)))
    carriers: dict[str, list[Transfer]] = {}
    for move in plan.transfers:
        if move.over is not None:
            carriers.setdefault(move.over, []).append(move)
        elif move.reader is None and move.finish_us > move.start_us:
            carriers.setdefault(TO_HOST, []).append(move)
    for name, carried in carriers.items():
        busy = _covered((move.start_us, move.finish_us) for move in carried)
        lanes.append(Lane(name, "carrier", (), _apart(_moves(carried, span)), _share(busy, plan)))
    return Gantt(
        lanes=tuple(lanes),
        ticks=tuple(ticks(span, MARKS)),
        makespan=place(plan.makespan_us, span),
        bound=place(plan.lower_bound_us, span),
        causes={cause: sum(step.cause == cause for step in plan.steps) for cause in TITLES},
        idle=tuple(processor for processor in plan.processors if processor not in plan.processors_used),
    )


def _steps(steps: Sequence[Step], span: float, names: Sequence[str]) -> Iterator[Stretch]:
    for step in steps:
        at, end = place(step.start_us, span), place(step.finish_us, span)
        title = f"{names[step.job]}, " if names else ""
        title += f"{step.ops[-1]}: {duration(step.finish_us - step.start_us)} from {duration(step.start_us)} on. "
        title += TITLES[step.cause]
        yield Stretch(at, end - at, step.cause, title, (step.id,), "/".join(step.ops[-1].split("/")[-2:]))


def _moves(moves: Iterable[Transfer], span: float) -> Iterator[Stretch]:
    for move in sorted(moves, key=lambda move: move.start_us):
        at, end = place(move.start_us, span), place(move.finish_us, span)
        title = f"Transfer of {move.tensor} from {move.source} to {move.target}: "
        yield Stretch(at, end - at, "transfer", title + duration(move.finish_us - move.start_us))


def _apart(bars: Iterable[Stretch]) -> tuple[Stretch, ...]:
    """The bars of a lane, those of one kind as one that nobody could see apart."""
    found: list[Stretch] = []
    for bar in bars:
        last = found[-1] if found else None
        near = last is not None and min(last.width, bar.width) < NARROW and bar.at - last.at - last.width < NARROW / 2
        if last is None or not near or last.kind != bar.kind:
            found.append(bar)
            continue
        steps = (*last.steps, *bar.steps)
        title = f"{len(steps)} short steps. {TITLES[Cause(bar.kind)]}" if steps else "Several short transfers"
        found[-1] = Stretch(last.at, max(bar.at + bar.width - last.at, last.width), bar.kind, title, steps)
    return tuple(found)


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Microseconds in which at least one of the spans is under way."""
    total = until = 0.0
    for start, finish in sorted(spans):
        total += max(0.0, finish - max(start, until))
        until = max(until, finish)
    return total


def _share(busy_us: float, plan: Plan) -> float:
    return busy_us / plan.makespan_us if plan.makespan_us > 0 else 0.0
