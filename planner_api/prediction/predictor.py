"""A predictor of one kind of processor: the lines, and what they leave unexplained, smoothed over similar ops.

What the lines leave (in logarithms) is a Gaussian process over features: a constant per type plus a smooth part. So a
figure that was measured is predicted as it is, one beside it almost, and one far from all others by its line; the
spread says which of these it is. Where another kind of processor is known better, its predictor takes the place of
the lines, and a constant over all types says how much faster this kind is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner_api.planning.problem import FloatArray
from planner_api.prediction.features import Features
from planner_api.prediction.lines import LEAST_US, Lines

LEAST_SIGNATURES = 20
"""Figures below which lines are not fitted."""
NOISE = 0.07
"""Relative deviation of one figure from another of the same signature."""
SMOOTH, TYPE = 0.35, 0.5
"""Deviation of the smooth part and of a type's constant around the lines."""
SMOOTH_BESIDE, TYPE_BESIDE, ALL_BESIDE = 0.4, 0.6, 1.0
"""The same around another kind's predictor, and of the constant over all types."""
UNKNOWN_TYPE = 1.0
"""Deviation of an op of a type of which nothing was measured."""
LENGTHS = np.array([1.0, 1.0, 1.2, 0.8, 0.5, 0.5, 0.5, 0.8, 0.5, 0.5, 0.5])
"""How far apart points (see ``Features.point``) are that still say something of each other."""
WILD = 2.5
"""Deviations from what all others predict of it beyond which a figure loses weight, and soon all of it."""
PASSES = 4
AT_ONCE = 1000
"""Ops predicted at once: each is compared with every sample, which takes some 10 KB."""


class TooLittleError(ValueError):
    """Too few figures to predict from: nothing is better than a guess."""


@dataclass(frozen=True)
class Sample:
    """What was measured of one signature: median microseconds over ``count`` figures."""

    op: Features
    us: float
    count: int = 1


class Prediction(NamedTuple):
    """Microseconds and their relative standard deviation."""

    us: float
    spread: float


class Predictor:
    """Latencies of one kind of processor.

    Args:
        samples: one per signature. A wild one is believed less than the others say it should be.
        beside: the predictor of another kind, to start from instead of from lines. Without any sample of this kind
            its figures are predicted, with a spread that says how little that means.

    Raises:
        TooLittleError: fewer samples than ``LEAST_SIGNATURES`` and no other predictor to stand beside.
    """

    def __init__(self, samples: Sequence[Sample], beside: Predictor | None = None) -> None:
        if not beside and len(samples) < LEAST_SIGNATURES:
            raise TooLittleError(
                f"{len(samples)} signatures were measured; predictions rest on {LEAST_SIGNATURES} at least"
            )
        self._beside = beside
        self._ops = [sample.op for sample in samples]
        us = [sample.us for sample in samples]
        self.lines: Lines = beside.lines if beside else Lines.fit(self._ops, us)
        self._deviations = (ALL_BESIDE, TYPE_BESIDE, SMOOTH_BESIDE) if beside else (0.0, TYPE, SMOOTH)
        self._types = {op.type for op in self._ops}
        left = np.log(np.maximum(np.array(us, dtype=float), LEAST_US)) - self._mean(self._ops)
        counts = np.array([sample.count for sample in samples])
        covariance, weight = self._covariance(self._ops, self._ops), np.ones(len(us))
        # A figure's own variance: what all of a signature share, and what more of them average out.
        own = NOISE**2 * (0.3 + 1 / counts)
        for _ in range(PASSES):
            self._inverse = np.linalg.inv(covariance + np.diag(own / weight))
            self._pull = self._inverse @ left
            precision = np.diag(self._inverse)
            without = np.abs(self._pull) / np.sqrt(precision)
            weight = np.clip((WILD / np.maximum(without, 1e-9)) ** 4, 1e-4, 1.0)

    @property
    def bytes(self) -> int:
        """What it takes in memory, about: a number for every two of its samples."""
        return int(self._inverse.nbytes) + (self._beside.bytes if self._beside else 0)

    def knows(self, type_: str) -> bool:
        """Whether an op of this type was measured, here or where this predictor stands beside."""
        return type_ in self._types or (self._beside is not None and self._beside.knows(type_))

    def __call__(self, ops: Sequence[Features]) -> list[Prediction]:
        return [one for at in range(0, len(ops), AT_ONCE) for one in self._predict(ops[at : at + AT_ONCE])]

    def _predict(self, ops: Sequence[Features]) -> list[Prediction]:
        known = self._covariance(ops, self._ops)
        mean = self._mean(ops) + known @ self._pull
        everything, type_, smooth = self._deviations
        strange = np.array([not self._beside and op.type not in self._types for op in ops])
        own = everything**2 + type_**2 + smooth**2 + UNKNOWN_TYPE**2 * strange
        variance = own - np.einsum("ij,ij->i", known @ self._inverse, known)
        spread = np.sqrt(np.maximum(variance, 0) + NOISE**2)
        return [Prediction(us, one) for us, one in zip(np.exp(mean).tolist(), spread.tolist(), strict=True)]

    def covariance(self, ops: Sequence[Features]) -> FloatArray:
        """How uncertain each prediction is, and together with which: (n, n), of the logarithms."""
        known = self._covariance(ops, self._ops)
        covariance: FloatArray = self._covariance(ops, ops) - known @ self._inverse @ known.T
        if self._beside:
            return covariance
        strange = np.array([op.type not in self._types for op in ops])
        types = np.array([op.type for op in ops])
        covariance += UNKNOWN_TYPE**2 * (strange[:, None] & (types[:, None] == types))
        return covariance

    def _mean(self, ops: Sequence[Features]) -> FloatArray:
        if self._beside:
            return np.log([one.us for one in self._beside(ops)])
        return np.log(self.lines.us(ops))

    def _covariance(self, ones: Sequence[Features], others: Sequence[Features]) -> FloatArray:
        everything, type_, smooth = self._deviations
        a, b = _points(ones), _points(others)
        number = {name: index for index, name in enumerate({op.type for op in (*ones, *others)})}
        same = np.array([number[one.type] for one in ones])[:, None] == np.array([number[one.type] for one in others])
        covariance: FloatArray = a @ b.T
        covariance -= (a**2).sum(axis=1)[:, None] / 2
        covariance -= (b**2).sum(axis=1) / 2
        np.exp(covariance, out=covariance)  # of minus half the squared distance; in place, for there are many
        covariance *= smooth**2
        covariance += type_**2
        covariance *= same
        covariance += everything**2
        return covariance


def _points(ops: Sequence[Features]) -> FloatArray:
    points: FloatArray = np.array([op.point for op in ops]).reshape(len(ops), len(LENGTHS)) / LENGTHS
    return points
