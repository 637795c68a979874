"""Moving tensors between memories: by what, and how long it takes."""

from collections.abc import Sequence

from agent_sdk.machine.timing import Timing, measure
from agent_sdk.runtimes.base import Buffer, Place, Processor
from agent_sdk.runtimes.copying import bound_copy, host_array
from agent_sdk.runtimes.host import aligned_empty
from hope_schema import HOST, Channel, TensorType


def channels(processors: Sequence[Processor]) -> tuple[Channel, ...]:
    """The ways on which tensors are carried while ops run, and by what."""
    found: dict[tuple[str, str], Channel] = {}
    for own in processors:
        for other in (HOST, *(processor.spec.place for processor in processors)):
            if own.copy_engines and other.partition("/")[0] != own.spec.memory:
                ways = ((other, own.spec.place), (own.spec.place, other))
                for way, engine in zip(ways, own.copy_engines, strict=True):
                    found.setdefault(way, Channel(source=way[0], target=way[1], busy=engine))
    return tuple(found.values())


def time_move(tensor: TensorType, giver: Place | None, taker: Place | None, deadline: float) -> Timing:
    """Time the move alone: between two places as lanes make it, or between one and the host's application."""
    if giver is None or taker is None:
        array = aligned_empty(tensor)
        array[...] = 0
        if taker is None:
            assert giver is not None
            buffer = giver.from_host(array)
            return measure(lambda: giver.to_host(buffer).copy(), deadline=deadline)
        into = taker.allocate(tensor)
        return measure(lambda: taker.from_host(array, into), deadline=deadline)
    copy = bound_copy(_buffer(tensor, giver, taker), giver, _buffer(tensor, taker, giver), taker)
    return measure(copy, deadline=deadline)


def _buffer(tensor: TensorType, here: Place, peer: Place) -> Buffer:
    """Where a tensor stands that is copied between two places."""
    if here.memory != HOST:
        return here.allocate(tensor)
    array = host_array(tensor, peer)
    array[...] = 0  # pages that nobody has touched are not there, and quicker to read than any
    return array
