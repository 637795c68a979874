"""Progress on a terminal, and where there is none."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Final, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress_bar import ProgressBar
from rich.text import Text

from agent_sdk.errors import printable
from agent_sdk.progress import ProgressListener

QUIET_S: Final = 2.0
"""Where nothing can be animated, something is said at least so often."""


class TimeBar(ProgressColumn):
    """How much of the longest time that a phase may take has passed; nothing where nobody knows it."""

    def render(self, task: Task) -> ProgressBar | Text:
        """Draw it."""
        most_s: float | None = task.fields["most_s"]
        if most_s is None:
            return Text("")
        return ProgressBar(total=most_s, completed=min(task.elapsed or 0.0, most_s), width=30)


class Clock(ProgressColumn):
    """How long a phase has taken, and how long it may take."""

    def render(self, task: Task) -> Text:
        """Draw it."""
        return Text(_clock(task.elapsed or 0.0, task.fields["most_s"]), style="progress.elapsed")


class TerminalProgress(ProgressListener):
    """Draws what is being done and for how long; where that cannot be redrawn it prints lines, at least every 2 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeBar(), Clock(),
                   TextColumn("{task.fields[note]}", style="dim", markup=False))  # fmt: skip
        self._bar = Progress(*columns, console=console, transient=True)
        self._task: TaskID | None = None
        self._phase = self._doing = ""
        self._most_s: float | None = None
        self._began = self._spoke = time.monotonic()
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

    def phase(self, text: str, most_s: float | None = None) -> None:
        """Begin to say that this is done, for ``most_s`` seconds at the longest."""
        self._phase, self._doing, self._most_s = printable(text), "", most_s
        self._began = time.monotonic()
        if not self._console.is_terminal:
            self._print(f"{self._phase} ..." if most_s is None else f"{self._phase}, {most_s:.0f} s at most ...")
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._phase, total=None, note="", most_s=most_s)

    def step(self, text: str) -> None:
        """Say what is done within the phase."""
        self._doing = printable(text)
        if self._task is not None:
            self._bar.update(self._task, note=self._doing[:48])

    def _beat(self) -> None:
        """Say how long it has taken whenever nothing else was said."""
        while not self._over.wait(QUIET_S / 4):
            now = time.monotonic()
            if self._phase and now - self._spoke >= QUIET_S * 0.75:
                doing = f": {self._doing}" if self._doing else ""
                self._print(f"  {self._phase}{doing} ({_clock(now - self._began, self._most_s)})")

    def _print(self, text: str) -> None:
        self._spoke = time.monotonic()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _clock(elapsed_s: float, most_s: float | None) -> str:
    shown = f"{elapsed_s:.0f} s"
    return shown if most_s is None else f"{shown} of at most {most_s:.0f} s"
