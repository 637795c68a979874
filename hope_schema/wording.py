"""Figures and reasons as people read them: the same words in the console and on a device."""

from __future__ import annotations

from typing import Final

from hope_schema.plan import Cause, Step

TITLES: Final[dict[Cause, str]] = {
    Cause.FASTER: "Fastest here",
    Cause.AVOIDS_TRANSFER: "Saves a transfer",
    Cause.PARALLEL_BRANCH: "Beside other work",
    Cause.ONLY_SUPPORTED: "Only possible here",
}
"""Each cause in a word or two, those that are decided by figures first."""
UNITS: Final = (("h", 3.6e9), ("min", 6e7), ("s", 1e6), ("ms", 1e3))


def reason(step: Step) -> str:
    """Return why a step is where it is, in a clause, with the figures where the plan has them."""
    other, own = step.next_best, step.alone_us
    if step.cause is Cause.ONLY_SUPPORTED:
        return "no other processor of the plan can run it"
    if other is None or own is None:
        return {
            Cause.FASTER: "no processor runs it in less time",
            Cause.AVOIDS_TRANSFER: "another processor is faster, but moving its tensors there would cost more",
            Cause.PARALLEL_BRANCH: "its fastest processor has other work meanwhile",
        }[step.cause]
    whole = duration(step.finish_us - step.start_us)
    besides = f" ({whole} with transfers, launch and neighbours)" if whole != duration(own) else ""
    figures = f"{duration(own)} here{besides}, {duration(other.us)} on {other.processor}"
    if step.cause is Cause.AVOIDS_TRANSFER:
        return f"{figures}, but moving its tensors there would cost more"
    return figures if step.cause is Cause.FASTER else f"{figures}, which has other work meanwhile"


def duration(us: float | None) -> str:
    """Return microseconds for people, with three figures: ``7.25 ms``; a dash for what is not known."""
    if us is None:
        return "–"
    for unit, size in UNITS:
        if us >= 0.9995 * size:  # what rounds to one of a unit is said in it
            return f"{_figures(us / size)} {unit}"
    return f"{_figures(us)} µs"


def count(value: float | None) -> str:
    """Return a whole number with narrow spaces, ``100 000``; a dash for what is not known."""
    return "–" if value is None else f"{round(value):,}".replace(",", "\u202f")


def plural(number: int, noun: str) -> str:
    """Return ``1 device``, ``2 devices``."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def _figures(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    return text.rstrip("0").rstrip(".") if "." in text else text
