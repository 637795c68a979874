"""The progress bar: it shows texts as they are, and lets none of them command the terminal."""

from __future__ import annotations

import io
import threading
from unittest.mock import Mock

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.progress_bar import ProgressBar

from agent_sdk.cli import terminal
from agent_sdk.cli.terminal import TerminalProgress, TimeBar
from agent_sdk.progress import Reporter


def test_phases_and_steps_are_no_markup() -> None:
    """Square brackets in a path or an op's name are shown, and control characters are not passed on."""
    file = io.StringIO()
    with TerminalProgress(Console(file=file, force_terminal=True, width=120)) as shown:
        progress = Reporter(shown)
        progress.phase("reading d[/a]b[int8].onnx\x1b]0;title\x07", 2)
        progress.step("Conv[bold] on\x1b[31m ort@0")
    assert "d[/a]b[int8].onnx?]0;title?" in file.getvalue()
    assert "Conv[bold] on?[31m ort@0" in file.getvalue()


def test_every_step_says_what_it_is() -> None:
    """Who prints what is done prints no line twice, a phase by itself as it is, and nothing that a file may send."""
    said: list[str] = []
    progress = Reporter(lambda now: said.append(str(now)))
    progress.phase("measuring", 55)
    progress.step("launches\x1b[31m")
    progress.phase("reading")
    assert said == ["measuring, 0 of 55 s", "measuring, 0 of 55 s: launches?[31m", "reading"]


def test_a_pipe_gets_a_line_each() -> None:
    """What is longer than a terminal is wide is not broken where nobody looks at one."""
    file = io.StringIO()
    with TerminalProgress(Console(file=file, width=20)) as shown:
        progress = Reporter(shown)
        progress.phase("reading a file of a long name")
    assert file.getvalue() == "reading a file of a long name ...\n"


def test_where_nothing_can_be_redrawn_no_silence_is_longer_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe a long phase says again and again what it does, for how long, and how long it may take."""
    monkeypatch.setattr(terminal, "QUIET_S", 0.02)
    file = io.StringIO()
    heard = threading.Event()

    class Listener(io.StringIO):
        def write(self, text: str) -> int:
            file.write(text)
            if file.getvalue().count("Conv on ort@0") == 3:
                heard.set()
            return len(text)

    with TerminalProgress(Console(file=Listener(), width=120)) as shown:
        progress = Reporter(shown)
        progress.phase("measuring", 55)
        progress.step("Conv on ort@0")
        assert heard.wait(20)
    assert file.getvalue().startswith("measuring, 55 s at most ...\n")
    assert "  measuring: Conv on ort@0 (0 s of at most 55 s)\n" in file.getvalue()


def test_the_bar_fills_with_time() -> None:
    """Of a phase of at most 50 s a fifth is drawn after 10 s, however much is done by then, and never more than all."""
    clock = Mock(return_value=0.0)
    progress = Progress(TimeBar(), get_time=clock)
    progress.add_task("measuring", total=None, most_s=50.0)
    [task] = progress.tasks
    for passed, part in ((0.0, 0.0), (10.0, 0.2), (70.0, 1.0)):
        clock.return_value = passed
        bar = TimeBar().render(task)
        assert isinstance(bar, ProgressBar)
        assert bar.percentage_completed == 100 * part


def test_quiet_is_quiet() -> None:
    """With ``--quiet`` nothing is said, on a terminal or not."""
    for terminal_there in (True, False):
        file = io.StringIO()
        with TerminalProgress(Console(file=file, force_terminal=terminal_there, quiet=True)) as shown:
            progress = Reporter(shown)
            progress.phase("reading")
            progress.step("x")
        assert file.getvalue() == ""
