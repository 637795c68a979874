"""The words that agent and planner share: ModelGraph, Observations, Profile, Plan and the messages around them.

Pydantic only; imports nothing else of this project.
"""

from hope_schema.graph import ModelGraph, Op, Tensor, TensorType
from hope_schema.messages import (
    Job,
    Missing,
    MissingLatency,
    MissingRequest,
    MissingTransfer,
    ModelReceipt,
    PlanReply,
    PlanRequest,
    ProblemDetails,
    UploadReceipt,
)
from hope_schema.plan import Cause, Method, Objective, Part, Plan, Step, Transfer, TransferMode
from hope_schema.profile import (
    HOST,
    LatencyColumns,
    Measured,
    Observations,
    Overheads,
    Processor,
    Profile,
    TransferColumns,
)
from hope_schema.superop import SuperOp, merge

__all__ = [
    "HOST",
    "Cause",
    "Job",
    "LatencyColumns",
    "Measured",
    "Method",
    "Missing",
    "MissingLatency",
    "MissingRequest",
    "MissingTransfer",
    "ModelGraph",
    "ModelReceipt",
    "Objective",
    "Observations",
    "Op",
    "Overheads",
    "Part",
    "Plan",
    "PlanReply",
    "PlanRequest",
    "ProblemDetails",
    "Processor",
    "Profile",
    "Step",
    "SuperOp",
    "Tensor",
    "TensorType",
    "Transfer",
    "TransferColumns",
    "TransferMode",
    "UploadReceipt",
    "merge",
]
