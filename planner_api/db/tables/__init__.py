"""Every table of the planner, for SQLite and PostgreSQL alike.

Large documents (graphs, profiles, plans) are kept as the compressed bytes that are served or loaded as a
whole; what is searched by stands in columns beside them. Times are UTC; durations are microseconds.
"""

from planner_api.db.tables.base import Base
from planner_api.db.tables.devices import (
    AuditHeadRow,
    AuditRetentionRow,
    AuditRow,
    ClaimRow,
    ConsoleSessionRow,
    DeviceRow,
    DriftRow,
    GroupRow,
    TokenRow,
    UsageRow,
)
from planner_api.db.tables.jobs import JobRow, NewsRow, WorkerRow
from planner_api.db.tables.models import ModelAliasRow, ModelRow, ModelVersionRow, NamedModelRow, SignatureRow
from planner_api.db.tables.plans import (
    SERVED_VERSION,
    FanoutPlanRow,
    FanoutRow,
    PlanJobRow,
    PlanRestsOnRow,
    PlanRow,
    PlanVersionRow,
)
from planner_api.db.tables.profiles import (
    AssignmentRow,
    ContributionRow,
    InboxRow,
    ProfileRow,
    ProfileVersionRow,
    SocRow,
)
from planner_api.db.tables.rollout import Counts, ReleaseClaimRow, ReleaseDeviceRow, ReleasePartRow, ReleaseRow
