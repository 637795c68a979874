"""Progress on a terminal, and where there is none."""

import threading
import time
from contextlib import ExitStack
from typing import Final, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from agent_sdk.errors import printable
from agent_sdk.progress import Progress as Doing

QUIET_S: Final = 2.0
"""Where nothing can be animated, something is said at least so often."""


class TimeBar(ProgressColumn):
    """How much of the longest time that a phase may take has passed; nothing where nobody knows it."""

    def render(self, task: Task) -> ProgressBar | Text:
        most_s: float | None = task.fields["most_s"]
        if most_s is None:
            return Text("")
        return ProgressBar(total=most_s, completed=min(task.elapsed or 0.0, most_s), width=30)


class Clock(ProgressColumn):
    """How long a phase has taken, and how long it may take."""

    def render(self, task: Task) -> Text:
        return Text(_clock(task.elapsed or 0.0, task.fields["most_s"]), style="progress.elapsed")


class TerminalProgress:
    """Draws what is being done and for how long; where that cannot be redrawn it prints lines, at least every 2 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeBar(), Clock(),
                   TextColumn("{task.fields[note]}", style="dim", markup=False))  # fmt: skip
        self._bar = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self._now: Doing | None = None
        self._spoke = time.monotonic()
        self._over = threading.Event()
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if self._console.quiet:
            return self
        if self._console.is_terminal:
            self._open.enter_context(self._bar)
        else:
            beat = threading.Thread(target=self._beat, name="hope-progress", daemon=True)
            beat.start()
            self._open.callback(beat.join)
            self._open.callback(self._over.set)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __call__(self, now: Doing) -> None:
        begins = self._now is None or self._now.began_s != now.began_s
        self._now = now
        text = printable(now.phase)
        if not self._console.is_terminal:
            if begins:
                self._print(f"{text} ..." if now.most_s is None else f"{text}, {now.most_s:.0f} s at most ...")
            return
        if begins:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(text, total=None, note="", most_s=now.most_s)
        if self._task is not None:
            self._bar.update(self._task, note=printable(now.step)[:48])

    def _beat(self) -> None:
        """Say how long it has taken whenever nothing else was said."""
        while not self._over.wait(QUIET_S / 4):
            now = self._now
            if now is not None and time.monotonic() - self._spoke >= QUIET_S * 0.75:
                step = f": {printable(now.step)}" if now.step else ""
                self._print(f"  {printable(now.phase)}{step} ({_clock(now.elapsed_s, now.most_s)})")

    def _print(self, text: str) -> None:
        self._spoke = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _clock(elapsed_s: float, most_s: float | None) -> str:
    shown = f"{elapsed_s:.0f} s"
    return shown if most_s is None else f"{shown} of at most {most_s:.0f} s"
