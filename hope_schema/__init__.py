"""The words that agent and planner share: ModelGraph, Observations, Profile, Plan and the messages around them.

Pydantic only; imports nothing else of this project.
"""

from hope_schema.audit import AuditEntry, AuditPage, AuditProof
from hope_schema.fleet import (
    Contribution,
    ContributionPage,
    Device,
    DevicePage,
    DeviceReport,
    Enrolment,
    EnrolmentReceipt,
    Fanout,
    FanoutRequest,
    FleetModel,
    FleetModelPage,
    FleetPlan,
    FleetPlanPage,
    FleetProfile,
    FleetProfilePage,
    FleetSummary,
    MeasuredRun,
    Vote,
    VotePage,
)
from hope_schema.graph import ModelGraph, Op, Tensor, TensorType
from hope_schema.history import MovedStep, PlanDiff, PlanHistory, PlanVersion, Results
from hope_schema.hosts import Host, Link, Offer, PlannedHost
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
from hope_schema.plan import Alternative, Cause, Cut, Method, Objective, Plan, PlannedJob, Step, Transfer
from hope_schema.profile import (
    HOST,
    Channel,
    LatencyColumns,
    Measured,
    Observations,
    Overheads,
    PartColumns,
    Processor,
    Profile,
    TransferColumns,
)
from hope_schema.proof import Proof, ProofRequest
from hope_schema.registry import (
    AliasTarget,
    DeviceDescription,
    Group,
    GroupPage,
    GroupSelector,
    Labelled,
    ModelVersion,
    ModelVersionPage,
    NamedModel,
    NamedModelPage,
    NewModelVersion,
)
from hope_schema.releases import (
    Comparison,
    Release,
    ReleasePage,
    ReleasePart,
    ReleasePartPage,
    ReleaseRequest,
    RolloutPolicy,
)
from hope_schema.superop import SuperOp, by_recipe, merge, recipe_of
from hope_schema.tokens import Claim, ClaimPage, IssuedToken, NewClaim, NewToken, Token, TokenPage
