"""Networks to try HOPE on: those of the paper built in code, and the real graphs that ship with ``onnx``.

``names()`` lists them, ``build(name)`` makes one, ``path(name)`` keeps it as a file, and
``describe(name)`` tells its size. All weights are random but seeded: the same name and seed give the same bytes.
"""

from hope_zoo.catalogue import Details, build, describe, names
from hope_zoo.store import path

__all__ = ["Details", "build", "describe", "names", "path"]
