"""The API of work in the background: what is under way, how far it is, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.admin.jobs import JobInfo, JobList, JobQuery, cancel_job, job_view, jobs_view
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "jobs"


async def list_jobs(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return jobs_view(desk.broker)


async def describe(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return job_view(desk.broker, JobQuery(call.path["job"]))


async def cancel(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return await cancel_job(desk.broker, JobQuery(call.path["job"]))


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/jobs",
        list_jobs,
        "Work in the background, the latest first",
        tag=TAG,
        description="What has ended is forgotten after ten minutes.",
        answer=JobList,
    ),
    Route("GET", "/v1/jobs/{job}", describe, "How far a job is", tag=TAG, answer=JobInfo),
    Route(
        "DELETE",
        "/v1/jobs/{job}",
        cancel,
        "Cancel a job",
        tag=TAG,
        description="It ends between two transactions, so that nothing is left half-way. If it has not ended within"
        " two seconds, the answer says `cancelling`.",
        answer=JobInfo,
    ),
)
