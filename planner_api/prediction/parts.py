"""What parts of ops take that nobody measured: how the prediction of a half compares with that of the whole."""

from collections.abc import Iterable

from hope_schema import PartColumns, SuperOp
from hope_schema.cutgraph import node_of, part_super_op
from hope_schema.cutting import CutError, Region, axes_of, halve
from planner_api.prediction.complete import Predictors
from planner_api.prediction.features import Features, features


def predicted_parts(supers: Iterable[SuperOp], predictors: Predictors) -> PartColumns:
    """What parts take beyond their share, of every op that computes more than it moves, by kind and axis.

    Only ratios of predictions are used: what is wrong with an op as a whole is as wrong with its half.
    """
    halves: list[tuple[str, int, float]] = []
    ops: list[Features] = []
    for signature, op in {op.signature: op for op in supers}.items():
        whole = features(op)
        if not whole.multiplies or len(op.outputs) != 1:
            continue
        shape, node = op.graph.tensor[op.id].shape, node_of(op)
        for axis in axes_of(shape):
            try:
                middle = halve(node, axis, shape[axis])
                half = features(part_super_op(op, Region.along(axis, 0, middle)))
            except CutError:
                continue
            halves.append((signature, axis, middle / shape[axis]))
            ops += whole, half
    rows: list[tuple[str, str, int, float]] = []
    for kind, predictor in predictors.items():
        us = [one.us for one in predictor(ops)]
        for (signature, axis, share), whole, all_of_it, part in zip(halves, ops[::2], us[::2], us[1::2], strict=True):
            if predictor.knows(whole.type):
                rows.append((signature, kind, axis, min(1.0, max(0.0, (part / all_of_it - share) / (1.0 - share)))))
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return PartColumns(signature=columns[0], kind=columns[1], axis=columns[2], fixed=columns[3])
