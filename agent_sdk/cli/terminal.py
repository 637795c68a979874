"""Progress on a terminal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from agent_sdk.errors import printable


class TerminalProgress:
    """Draws a bar per phase on a terminal; on anything else it prints one line per phase."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
            transient=True,
            disable=console.quiet or not console.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def phase(self, text: str, total: int | None = None) -> None:
        """Replace the bar by one for the new phase."""
        text = printable(text)
        if self._bar.disable:
            self._console.print(f"{text} ...", markup=False, highlight=False)
            return
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(text, total=total, note="")

    def step(self, done: int, text: str = "") -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.update(self._task, completed=done, note=printable(text)[:40])
