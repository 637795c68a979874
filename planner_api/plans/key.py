"""What makes two plan requests the same."""

import hashlib
import math
from functools import lru_cache

from hope_schema import Job, Link, PlanRequest
from hope_schema.hosts import stepped
from planner_api.web.shape import parse

REMEMBERED, REMEMBERED_BYTES = 1000, 2048
"""So many questions are read once, each of so many bytes at most: reading one costs more than all else of an answer
that is in memory."""


def normalised(request: PlanRequest) -> PlanRequest:
    """Return the request that stands for all that ask for the same plan.

    The order of jobs, processors, hosts and links changes no plan. Figures of links are rounded to steps:
    devices with about equal links share a plan, and one whose link changes comes back to the plan of before.
    """
    return request.model_copy(
        update={
            "jobs": tuple(sorted(request.jobs, key=_by_fields)),
            "processors": _names(request.processors),
            "hosts": tuple(
                host.model_copy(update={"processors": _names(host.processors)})
                for host in sorted(request.hosts, key=lambda host: host.name)
            ),
            "links": tuple(
                _in_steps(link) for link in sorted(request.links, key=lambda link: (link.source, link.target))
            ),
        }
    )


def keyed(request: PlanRequest) -> tuple[PlanRequest, str]:
    """Return the request as ``normalised`` makes it, and the id of the plan that all of these ask for."""
    request = normalised(request)
    return request, f"p-{hashlib.sha256(request.model_dump_json().encode()).hexdigest()[:40]}"


def asked(text: bytes | bytearray) -> tuple[PlanRequest, str]:
    """Read the body of a question, as ``keyed`` returns it. A fleet's devices ask with the same few bodies.

    Raises:
        HttpError: as ``parse`` does.
    """
    return _remembered(bytes(text)) if len(text) <= REMEMBERED_BYTES else keyed(parse(text, PlanRequest))


@lru_cache(REMEMBERED)
def _remembered(text: bytes) -> tuple[PlanRequest, str]:
    return keyed(parse(text, PlanRequest))


def _names(processors: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if processors is None else tuple(sorted(set(processors)))


def _by_fields(job: Job) -> tuple[object, ...]:
    due = math.inf if job.deadline_us is None else job.deadline_us
    return job.model_hash, job.release_us, job.period_us or 0.0, due, job.weight


def _in_steps(link: Link) -> Link:
    figures = ("fixed_us", "us_per_byte", "float16_us_per_byte")
    return link.model_copy(update={name: stepped(us) for name in figures if (us := getattr(link, name)) is not None})
