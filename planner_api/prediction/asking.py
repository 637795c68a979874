"""Which figures to ask of devices first: those whose measurement makes the most of all predictions certain."""

from collections.abc import Mapping, Sequence

import numpy as np

from planner_api.planning.problem import FloatArray
from planner_api.prediction.features import Features
from planner_api.prediction.predictor import NOISE, Predictor


def most_telling(predictors: Sequence[Predictor], ops: Mapping[Features, int], count: int) -> list[Features]:
    """Choose at most ``count`` ops to measure, on every kind of processor at once, the most telling first.

    Greedy: always the one after whose measurement the least microseconds are uncertain over the whole network, summed
    over the kinds. On each kind an op counts with what it takes where it is fastest: how slow it is elsewhere, where no
    plan puts it, is worth no question. Nothing has to be measured in between: how certain a prediction gets does not
    depend on the figure. ``ops`` says how often the network runs each.
    """
    candidates = list(ops)
    if not candidates:
        return []
    us = np.array([[one.us for one in predictor(candidates)] for predictor in predictors])
    weight: FloatArray = us.min(axis=0) * [ops[op] for op in candidates]
    covariances: list[FloatArray] = [predictor.covariance(candidates) for predictor in predictors]
    chosen: list[int] = []
    unasked = list(range(len(candidates)))
    while unasked and len(chosen) < count:
        gain = np.zeros(len(unasked))
        for covariance in covariances:
            variance = np.maximum(np.diag(covariance), 0)
            # [measured, predicted] deviation left once the first is known.
            left = variance - covariance[unasked] ** 2 / (variance[unasked, None] + NOISE**2)
            gain -= np.sqrt(np.maximum(left, 0)) @ weight
            gain += np.sqrt(variance) @ weight
        best = unasked.pop(int(np.argmax(gain)))
        chosen.append(best)
        covariances = [
            covariance - np.outer(covariance[:, best], covariance[best]) / (covariance[best, best] + NOISE**2)
            for covariance in covariances
        ]
    return [candidates[index] for index in chosen]
