"""The progress bar: it shows texts as they are, and lets none of them command the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from agent_sdk.cli.terminal import TerminalProgress


def test_phases_and_steps_are_no_markup() -> None:
    """Square brackets in a path or an op's name are shown, and control characters are not passed on."""
    file = io.StringIO()
    with TerminalProgress(Console(file=file, force_terminal=True, width=120)) as progress:
        progress.phase("reading d[/a]b[int8].onnx\x1b]0;title\x07", total=2)
        progress.step(1, "Conv[bold] on\x1b[31m ort@0")
    assert "d[/a]b[int8].onnx?]0;title?" in file.getvalue()
    assert "Conv[bold] on?[31m ort@0" in file.getvalue()
