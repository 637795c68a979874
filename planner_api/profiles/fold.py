"""The job of folding, which alone writes profiles: a batch of uploads is read, folded in a child, and stored.

What devices said that an admin takes back, or that were revoked, is forgotten before the batch is folded.
A job takes one batch; while more wait it stands in the queue anew, behind what others wait for.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar

import structlog
from sqlalchemy import delete, distinct, func, select, update

from planner_api.db.engine import WriteSession
from planner_api.db.tables import ContributionRow, ProfileRow, SocRow
from planner_api.db.upsert import upserting
from planner_api.jobs.kind import Kind, Lease, Task
from planner_api.jobs.news import publish
from planner_api.jobs.wanted import Wanted, put
from planner_api.profiles import inbox, repository
from planner_api.profiles.batch import FoldOrder, FoldOutcome, Upload
from planner_api.profiles.jobs import FOLD, OUTDATED, PROFILE, pair_of
from planner_api.web.inflate import Body

log = structlog.get_logger(__name__)

BATCH_UPLOADS, BATCH_ROWS = 256, 200_000
"""A batch holds at most this many uploads, and rows unless one upload alone has more: it is folded in memory."""
ESTABLISHED_BY = 3
"""Devices that must have uploaded for a SoC before the fleet counts it."""
FOLD_TIMEOUT_S = 60.0
FEWER = 16
"""By this factor a batch shrinks each time that a child died of it: the third has one upload, which is to blame."""


class Fold(Kind):
    """Folds uploads into profiles."""

    name: ClassVar[str] = FOLD
    function = "planner_api.profiles.batch:fold"
    answers = FoldOutcome

    async def load(self, lease: Lease) -> Task | None:
        """Read the next batch, a smaller one where a child died of the last."""
        soc, frequency = pair_of(lease.key)
        async with self._database.write() as session:
            head = await repository.ensure(session, soc, frequency)
        async with self._database.read() as session:
            most = max(1, BATCH_UPLOADS // FEWER**lease.failures)
            waiting = await inbox.pending(session, soc, frequency, most + 1)
            chosen = first_rows(waiting[:most])
            uploads = await inbox.bodies(session, chosen)
            gone = await repository.revoked(session, {row.device_id for row in uploads})
            taken_back = await repository.taken_back(session, head.id)
            statistics = await repository.statistics(session, head.id)
        if not uploads and not taken_back:
            return None
        order = FoldOrder(
            profile_id=head.id,
            soc=soc,
            frequency=frequency,
            version=head.version,
            folded=head.uploads,
            statistics=statistics,
            taken_back=tuple(taken_back),
            uploads=tuple(
                Upload(
                    row.id, row.device_id, Body(row.body, row.encoding), row.trusted, row.rows, row.device_id in gone
                )
                for row in uploads
            ),
            share=self._settings.figures_per_device,
            most_bytes=self._settings.max_inflated_bytes,
            taken_back_at=max(taken_back.values(), default=None),
            more=len(waiting) > len(uploads),
        )
        return Task(order, FOLD_TIMEOUT_S)

    async def store(self, session: WriteSession, lease: Lease, task: Task, prepared: FoldOutcome) -> bool:
        """Store what was folded, and queue what follows a new version; return whether there is more to fold.

        Nothing is stored where some of it was taken back meanwhile: the rest is folded anew.
        """
        order: FoldOrder = task.order
        if await inbox.were_taken_back(session, [sent.row_id for sent in order.uploads]):
            return True
        profile_id, now = order.profile_id, datetime.now(UTC)
        soc, _ = pair_of(lease.key)
        values = {**prepared.values, "rejected": ProfileRow.rejected + prepared.refused}
        await repository.store(session, profile_id, values, prepared.snapshot, now)
        if prepared.snapshot is not None:
            await put(session, Wanted(OUTDATED, lease.key, again=True))
        if order.taken_back_at is not None:  # of those taken back since, the next fold forgets what they said
            gone = ContributionRow.profile_id == profile_id, ContributionRow.taken_back_at <= order.taken_back_at
            await session.execute(delete(ContributionRow).where(*gone))
        read = [sent.row_id for sent in order.uploads if sent.row_id not in prepared.errors]
        await inbox.mark_folded(session, read, prepared.unused, now)
        await inbox.mark_unusable(session, prepared.errors, now)
        rows_of: Counter[str] = Counter()
        for sent in order.uploads:
            rows_of[sent.device_id] += sent.rows
        await repository.release(session, profile_id, rows_of, now)
        insert_into = upserting(session.get_bind().dialect.name, ContributionRow)
        new = insert_into.excluded
        counted = {"uploads": ContributionRow.uploads + new.uploads, "unused": new.unused, "last_at": new.last_at}
        statement = insert_into.on_conflict_do_update(index_elements=["profile_id", "device_id"], set_=counted)
        if rows := _by_device(order, prepared):
            await (await session.connection()).execute(statement, rows)
        theirs = select(func.count()).where(ContributionRow.profile_id == profile_id, ContributionRow.uploads > 0)
        await repository.store(session, profile_id, {"devices": theirs.scalar_subquery()}, None, now)
        uploaded = select(func.count(distinct(ContributionRow.device_id))).join(ProfileRow)
        uploaded = uploaded.where(ProfileRow.soc_id == SocRow.id, ContributionRow.uploads > 0).correlate(SocRow)
        agreed = SocRow.name == soc, SocRow.established_at.is_(None), uploaded.scalar_subquery() >= ESTABLISHED_BY
        await session.execute(update(SocRow).where(*agreed).values(established_at=now))
        await publish(session, PROFILE, lease.key)
        return order.more

    async def failed(
        self, session: WriteSession, lease: Lease, task: Task | None, error: str, *, permanent: bool
    ) -> None:
        """Leave the first upload out, which three children in a row did not survive, and go on with the next.

        A batch that was refused waits: what it was to be added to cannot be read, which is no fault of any upload.
        """
        soc, frequency = pair_of(lease.key)
        if permanent:
            log.error("profile_unreadable", soc=soc, frequency=frequency, error=error)
            return
        waiting = await inbox.pending(session, soc, frequency, 1)
        log.warning("upload_left_out", soc=soc, frequency=frequency, rows=[row_id for row_id, _ in waiting])
        await inbox.mark_unusable(session, {row_id: error for row_id, _ in waiting}, datetime.now(UTC))
        await put(session, Wanted(FOLD, lease.key))


def first_rows(waiting: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ids of the first uploads that together stay within a batch's rows, at least one."""
    ids: list[int] = []
    total = 0
    for row_id, rows in waiting:
        total += rows
        if ids and total > BATCH_ROWS:
            break
        ids.append(row_id)
    return ids


def _by_device(order: FoldOrder, folded: FoldOutcome) -> list[dict[str, Any]]:
    count = Counter(sent.device_id for sent in order.uploads if sent.row_id not in folded.errors)
    unused = {
        sent.device_id: folded.errors.get(sent.row_id) or folded.unused.get(sent.row_id) for sent in order.uploads
    }
    return [
        {"profile_id": order.profile_id, "device_id": device, "uploads": count[device], "unused": unused[device]}
        for device in sorted(unused)
    ]
