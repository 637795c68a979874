"""How a plain tensor gets from one place to another, and where on the host it should stand for that."""

from functools import partial

import numpy as np
from typing_extensions import override

from agent_sdk.runtimes.base import Bound, Buffer, Place
from agent_sdk.runtimes.host import aligned_empty
from hope_schema import HOST, TensorType


def host_array(kind: TensorType, peer: Place) -> np.ndarray:
    """An uninitialised array on the host for tensors that come from a place, or go there. Raises OutOfMemory."""
    found = peer.host_array(kind)
    return aligned_empty(kind) if found is None else found


def bound_copy(buffer: Buffer, source: Place, into: Buffer, target: Place) -> Bound:
    """A copy from a buffer into one elsewhere: by the device at either end where it can, else over the host."""
    direct = None
    if source.memory == HOST:
        direct = target.copy_in(buffer, into)
    elif target.memory == HOST:
        direct = source.copy_out(buffer, into)
    return direct or OverHost(buffer, source, into, target)


class OverHost(Bound):
    """A copy by the host: what works between any two places."""

    def __init__(self, buffer: Buffer, source: Place, into: Buffer, target: Place) -> None:
        self._bring = partial(target.bring, buffer, source, into)

    @override
    def __call__(self) -> None:
        self._bring()
