"""What a network's file says: plain ONNX Runtime on the file as it was given. Every answer of ours is judged by it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from agent_sdk.errors import UnplannableError
from agent_sdk.journey.rounding import nearest
from agent_sdk.model import Content
from agent_sdk.model.nodes import show
from agent_sdk.model.source import tensors
from agent_sdk.runtimes.ort.whole import WholeOrt


class Reference:
    """One thread of ONNX Runtime with its own defaults, loaded for each answer and freed after it.

    Args:
        content: the network as it was given; nothing that we made of it.
        refuse_crashing: raises ModelError where ONNX Runtime is known to crash at the file; by default it is not.
        precision: what it rounds the floats of a feed to; ``model`` rounds nothing.
    """

    def __init__(
        self, content: Content, refuse_crashing: Callable[[], None] = lambda: None, precision: str = "model"
    ) -> None:
        self.content = content
        self._refuse_crashing = refuse_crashing
        self._precision = precision

    def narrowed(self, precision: str) -> Reference:
        """The same network, its weights and what it is fed rounded as ``tf32`` or ``float16`` holds them.

        Raises ModelError; UnplannableError where the file is none that can be changed.
        """
        proto = self.content.proto()
        for tensor in tensors(proto.graph):
            if tensor.data_type == onnx.TensorProto.FLOAT:
                tensor.CopyFrom(numpy_helper.from_array(nearest(numpy_helper.to_array(tensor), precision), tensor.name))
        return Reference(Content(proto), self._refuse_crashing, precision)

    def outputs(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The network's outputs.

        Raises ModelError, InputError for a feed that is refused, or what loading a ``WholeOrt`` raises.
        """
        self._refuse_crashing()
        with self.content.opened() as given, closing(WholeOrt(given.file, 1, beside=given.beside)) as whole:
            return whole.run(self._rounded(feed))

    def inside(self, feed: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
        """Tensors inside the file's graph; those are absent that it calls otherwise. Raises like ``outputs``.

        The file is loaded with these as further outputs: the network's own outputs are not taken from there.
        """
        try:
            proto = self.content.proto() if names else onnx.ModelProto()
        except UnplannableError:  # in a runtime's own format, or too large to be written with other outputs
            return {}
        computed = {name for node in proto.graph.node for name in node.output}
        shown = [name for name in dict.fromkeys(names) if name in computed]
        if not shown:
            return {}
        self._refuse_crashing()
        show(proto, shown)
        with closing(WholeOrt(bytes(proto.SerializeToString()), 1)) as whole:
            found = whole.run(self._rounded(feed))
        return {name: found[name] for name in shown}

    def _rounded(self, feed: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._precision == "model":
            return feed
        return {
            name: nearest(value, self._precision) if isinstance(value, np.ndarray) else value
            for name, value in feed.items()
        }
