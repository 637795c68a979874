"""Latencies that nobody measured: predicted from what is known of an op, with the spread of each prediction.

Pure functions on plain data, a predictor per kind of processor. ``features`` says what is known of an op, ``lines`` is
CoDL's formula as a robust regression, and ``predictor`` puts what the lines leave unexplained back where something
similar was measured. ``asking`` finds the figures that would tell the most.
"""

from planner_api.prediction.asking import most_telling
from planner_api.prediction.features import Features, features
from planner_api.prediction.lines import Lines
from planner_api.prediction.predictor import Prediction, Predictor, Sample, TooLittle

__all__ = [
    "Features",
    "Lines",
    "Prediction",
    "Predictor",
    "Sample",
    "TooLittle",
    "features",
    "most_telling",
]
