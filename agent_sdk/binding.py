"""Arrays that stay put from run to run, by the names that ONNX Runtime's users know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agent_sdk.errors import InputError


class IoBinding:
    """What one caller's runs read and write; made by ``Session.io_binding``, used by one thread at a time.

    An input that is bound is read where it stands, as it is at each run. An output goes to the array that is bound for
    it, or to a new one each time.

    Args:
        inputs: names of what has to be given.
        outputs: names of what is computed.

    Attributes:
        feed: what is read, by input.
        into: what is written, by output.
    """

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.feed: dict[str, np.ndarray] = {}
        self.into: dict[str, np.ndarray] = {}
        self._wanted: dict[str, None] = {}
        self._made: dict[str, Any] = {}

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        """Read an input from this array from now on. Raises InputError for a name that is none."""
        _known("input", name, self._inputs)
        self.feed[name] = array

    def bind_output(self, name: str, array: np.ndarray | None = None) -> None:
        """Want an output, in this array or in a new one each time. Raises InputError for a name that is none."""
        _known("output", name, self._outputs)
        self._wanted[name] = None
        if array is None:
            self.into.pop(name, None)
        else:
            self.into[name] = array

    def clear_binding_inputs(self) -> None:
        """Read nothing any more."""
        self.feed.clear()

    def clear_binding_outputs(self) -> None:
        """Want nothing in particular any more: all outputs, in new arrays."""
        self.into.clear()
        self._wanted.clear()

    def take(self, made: dict[str, Any]) -> None:
        """Keep what a run made."""
        self._made = made

    def copy_outputs_to_cpu(self) -> list[Any]:
        """What the last run made, in the order in which outputs were bound; all of it where none was."""
        return [self._made[name] for name in self._wanted or self._made]


def _known(what: str, name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise InputError(f"there is no {what} '{name}'; {what}s: {', '.join(names)}")
