"""Whose time is it? Kernel times of a whole network, shared out to the super-ops that the kernels compute.

A kernel computes whatever its runtime fused into it: parts of several super-ops. Each of them takes its share, in
proportion to its work, so that the super-ops of a network cost together what the network costs. An op that was left out
would be measured alone, and counted twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from agent_sdk.machine.timing import Timing, summarise
from agent_sdk.model import Model
from agent_sdk.model.work import work
from hope_schema import merge


def share_out(
    model: Model, kernels: Mapping[str, Sequence[float]], covered: Mapping[str, Iterable[str]]
) -> dict[str, Timing]:
    """Latencies by super-op id: of each, the usual figure over its runs.

    Args:
        model: the network.
        kernels: microseconds of each run by kernel; where a kernel has more runs than others, its last ones count.
        covered: by kernel, the ids of the ops it computes; a kernel without any belongs to nobody.

    Returns:
        Every super-op that some kernel computes; empty without kernels.
    """
    graph = model.graph
    home = {op.id: super_op.id for super_op in merge(graph) for op in super_op.ops}
    runs = min((len(times) for times in kernels.values()), default=0)
    totals: dict[str, list[float]] = {}
    for kernel, times in kernels.items():
        shares: dict[str, float] = defaultdict(float)
        for op in set(covered.get(kernel, ())):
            shares[home[op]] += work(graph, graph.op[op])
        total = sum(shares.values())
        for super_op, share in shares.items():
            own = totals.setdefault(super_op, [0.0] * runs)
            for run, us in enumerate(times[len(times) - runs :]):
                own[run] += us * share / total
    return {super_op: summarise(samples) for super_op, samples in totals.items()} if runs else {}
