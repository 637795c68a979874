"""What ``hope-agent mix`` does and shows: networks loaded, a mix played under each policy, tables and a timeline."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from agent_sdk.agent import Agent
from agent_sdk.cli.report import plain
from agent_sdk.errors import ExecutionError, InputError, PlannerError, UnplannableError, printable
from agent_sdk.explain.perfetto import name_event, slice_event
from agent_sdk.machine.soc import read_soc
from agent_sdk.scheduling.job import Job
from agent_sdk.scheduling.jobs import NO_PARTS, JointParts
from agent_sdk.scheduling.mixes import Mix, Stream
from agent_sdk.scheduling.outcome import Ended, Summary, missed, summed_up
from agent_sdk.scheduling.playing import play
from agent_sdk.scheduling.policies import policy
from agent_sdk.session import Session

MOST_AT_ONCE: Final = 16
"""Runs of one stream that may be under way at once."""
COLUMNS: Final = 100
"""Width of the timeline."""
MARKS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+*"


@dataclass(frozen=True)
class Voice:
    """A stream that is ready to be played.

    Attributes:
        feed: what each run computes from.
        alone_ms: what a run takes with the machine to itself.
    """

    session: Session
    feed: Mapping[str, Any]
    alone_ms: float


def voices(agent: Agent, mix: Mix, closing: ExitStack) -> dict[str, Voice]:
    """Every stream's network, loaded, planned and spread over core groups where it can be.

    Raises what ``Agent.load`` raises, InputError where no inputs can be drawn.
    """
    found = {}
    cores = min(len(read_soc().cores), MOST_AT_ONCE)
    for stream in mix.streams:
        session = closing.enter_context(agent.load(stream.model, shapes=dict(stream.shape) or None, background=False))
        feed = session.draw()
        session.run(feed)
        # One answer has to stay for one input, or there is no room: whoever answers the session goes on.
        with suppress(UnplannableError, ExecutionError, MemoryError):
            agent.spread(session, in_flight=1 if stream.arrival == "closed" else cores)
        found[stream.name] = Voice(session, feed, agent.jobs.alone_ms(session.plans))
    return found


@dataclass(frozen=True)
class Played:
    """A mix under one policy.

    Attributes:
        use: by processor how busy it was, as a share of the time; ``""`` is whoever answers a session that is not
            spread.
    """

    policy: str
    mix: Mix
    ended: Sequence[Ended]
    use: Mapping[str, float]

    @property
    def summaries(self) -> list[Summary]:
        return [summed_up(stream.name, self.ended, self.mix.seconds) for stream in self.mix.streams]

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "missed": missed(self.ended),
            "streams": [asdict(one) for one in self.summaries],
            "use": dict(self.use),
        }


def planned(agent: Agent, mix: Mix, ready: Mapping[str, Voice], closing: ExitStack) -> tuple[JointParts, str]:
    """The periodic streams' runs in a joint plan, for policies that follow one; and what is to be said of it."""
    sessions, every_ms, due_ms = [], [], []
    for one in mix.streams:
        if one.period_ms is not None and one.arrival == "periodic" and one.after is None:
            sessions.append(ready[one.name].session)
            every_ms.append(one.period_ms)
            due_ms.append(one.due_ms or one.period_ms)
    try:
        found = closing.enter_context(agent.together(*sessions, every_ms=every_ms, deadlines_ms=due_ms))
        parts = found.parts
    except (InputError, ExecutionError, PlannerError) as error:
        return NO_PARTS, f"no joint plan: {error}"
    runs = f"a round of {len(found.plan.jobs)} runs"
    return parts, "; ".join([runs, *found.notes])


def played(agent: Agent, mix: Mix, ready: Mapping[str, Voice], which: str, parts: JointParts) -> Played:
    """Play a mix under a policy, which may follow a joint plan."""
    agent.jobs.use(policy(which), parts)

    def ask(stream: Stream, due_ms: float | None) -> Job:
        voice = ready[stream.name]
        return agent.submit(
            voice.session, voice.feed, deadline_ms=due_ms, priority=stream.priority, on_late=stream.on_late
        )

    ended = play(mix, ask)
    return Played(which, mix, ended, busy(ended, mix.seconds * 1e3))


def busy(ended: Sequence[Ended], last_ms: float) -> dict[str, float]:
    """By processor, the share of the time until then in which it computed; who steps in runs within another's time."""
    shares, until_ms = defaultdict[str, float](float), defaultdict[str, float](float)
    for one in sorted(ended, key=lambda one: one.start_ms or 0.0):
        if one.start_ms is not None and one.end_ms is not None:
            begin, end = max(one.start_ms, until_ms[one.where]), min(one.end_ms, last_ms)
            shares[one.where] += max(end - begin, 0.0) / last_ms
            until_ms[one.where] = max(end, until_ms[one.where])
    return dict(sorted(shares.items()))


def show(found: Played, console: Console) -> None:
    """Print a table, the use of processors and a timeline."""
    title = f"{found.mix.name} under {found.policy}: {missed(found.ended):.1%} of deadlines missed"
    # Fits into the 80 columns of a pipe.
    table = Table(title=plain(title), box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("stream", "runs", "p50 ms", "p99 ms", "missed", "dropped", "failed", "runs/s"):
        table.add_column(column, justify="left" if column == "stream" else "right", no_wrap=True)
    for mark, one in zip(MARKS, found.summaries, strict=False):
        share = f"{one.missed}/{one.deadlines}" if one.deadlines else "–"
        shown = [f"{mark} {one.stream}", str(one.runs), *(f"{ms:.2f}" if ms is not None else "–"
                 for ms in (one.p50_ms, one.p99_ms)), share, str(one.dropped), str(one.failed),
                 f"{one.per_second:.1f}"]  # fmt: skip
        table.add_row(*map(plain, shown))
    console.print(table)
    for failure in sorted({one.failure for one in found.ended if one.failure})[:5]:
        console.print(plain(f"failed: {failure}"))
    used = ", ".join(f"{name or 'own'} {share:.0%}" for name, share in found.use.items())
    console.print(f"busy: {used or 'nothing'}", markup=False)
    for line in timeline(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def timeline(found: Played) -> list[str]:
    """A line per processor over the first runs of the mix, and one per stream that says which runs were missed.

    A letter is the stream that a processor worked for at that time; ``!`` a run that missed its deadline.
    """
    streams = [stream.name for stream in found.mix.streams]
    mark = dict(zip(streams, MARKS, strict=False))
    periods = [stream.period_ms for stream in found.mix.streams if stream.period_ms is not None]
    window = min(found.mix.seconds * 1e3, 10 * max(periods, default=100.0))
    step = window / COLUMNS
    lines = [f"first {window:.0f} ms, a column is {step:.2f} ms; ' a run is asked for, ! its deadline is missed"]
    for where in found.use:
        row = ["."] * COLUMNS
        for one in found.ended:
            if one.where == where and one.start_ms is not None and one.end_ms is not None and one.start_ms < window:
                first = int(one.start_ms / step)
                for column in range(first, min(max(int(one.end_ms / step), first + 1), COLUMNS)):
                    row[column] = mark[one.stream]
        lines.append(f"{where or 'own':>16} {''.join(row)}")
    for stream in streams:
        row = [" "] * COLUMNS
        for one in found.ended:
            if one.stream == stream and one.release_ms < window:
                row[int(one.release_ms / step)] = "!" if one.missed else "'"
        lines.append(f"{mark[stream] + ' ' + printable(stream):>16} {''.join(row)}")
    return lines


def trace(all_played: Sequence[Played]) -> bytes:
    """Every run as a trace for ui.perfetto.dev: a process per policy, a line per processor."""
    events: list[dict[str, Any]] = []
    for process, found in enumerate(all_played):
        events.append(name_event(process, 0, "process_name", found.policy))
        lines = {where: line for line, where in enumerate(found.use)}
        events += [name_event(process, line, "thread_name", where or "own") for where, line in lines.items()]
        for one in found.ended:
            if one.start_ms is not None and one.end_ms is not None:
                args = {"released_ms": one.release_ms, "deadline_ms": one.deadline_ms, "missed": one.missed}
                times = one.start_ms * 1e3, one.end_ms * 1e3
                events.append(slice_event(process, lines[one.where], one.stream, "run", *times, args))
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode()
