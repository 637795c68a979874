"""Figures as they are sent: one column per property, one row per figure."""

from collections.abc import Mapping, Sequence

from agent_sdk.machine.timing import NOTHING, Timing
from hope_schema import LatencyColumns, TensorType, TransferColumns


def latency_columns(found: Mapping[tuple[str, str], Timing | None], shares: Sequence[float] = ()) -> LatencyColumns:
    """Latencies by signature and kind, as they are sent; None where an op cannot run."""
    timings = [timing or NOTHING for timing in found.values()]
    return LatencyColumns(
        signature=tuple(signature for signature, _ in found),
        kind=tuple(kind for _, kind in found),
        us=tuple(timing.us if timing else None for timing in found.values()),
        spread_us=tuple(timing.spread_us for timing in timings),
        count=tuple(timing.count for timing in timings),
        share=tuple(shares) if min(shares, default=1.0) < 1.0 else (),
    )


def transfer_columns(found: Mapping[tuple[TensorType, str, str], Timing]) -> TransferColumns:
    """Moves by type, source and target place, as they are sent."""
    return TransferColumns(
        tensor=tuple(tensor for tensor, _, _ in found),
        source=tuple(source for _, source, _ in found),
        target=tuple(target for _, _, target in found),
        us=tuple(timing.us for timing in found.values()),
        spread_us=tuple(timing.spread_us for timing in found.values()),
        count=tuple(timing.count for timing in found.values()),
    )
