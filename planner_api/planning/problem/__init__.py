"""What is planned: the problem as validated plain data, and how it is built from a model and a profile."""

from hope_schema import Objective
from planner_api.planning.problem.arrays import BoolArray, FloatArray, IntArray, PlanningError
from planner_api.planning.problem.machine import Machine
from planner_api.planning.problem.problem import Earlier, Job, Lists, Problem, Recipe, called
