"""The API of pipelines: how they are doing, starting and stopping them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.admin import view_pipelines
from waystation.admin.view_pipelines import PipelineDetail, PipelineQuery, PipelinesOut, PipelinesQuery
from waystation.protocols.http.calls import AnyRoute, Call, Nothing, Outcome, Route

if TYPE_CHECKING:
    from waystation.protocols.http.desk import Desk

TAG = "pipelines"


async def list_pipelines(desk: Desk, call: Call[PipelinesQuery, Nothing]) -> Outcome:
    return await view_pipelines.pipelines_view(desk.broker, call.query)


async def describe(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return await view_pipelines.pipeline_view(desk.broker, PipelineQuery(call.path["pipeline"]))


async def start(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return await view_pipelines.start_pipeline(desk.broker, PipelineQuery(call.path["pipeline"]))


async def stop(desk: Desk, call: Call[Nothing, Nothing]) -> Outcome:
    return await view_pipelines.stop_pipeline(desk.broker, PipelineQuery(call.path["pipeline"]))


ROUTES: tuple[AnyRoute, ...] = (
    Route(
        "GET",
        "/v1/pipelines",
        list_pipelines,
        "List the pipelines that run or ran on this broker, or could",
        tag=TAG,
        query=PipelinesQuery,
        answer=PipelinesOut,
    ),
    Route(
        "GET",
        "/v1/pipelines/{pipeline}",
        describe,
        "Describe a pipeline, with a timeline of its batches",
        tag=TAG,
        answer=PipelineDetail,
    ),
    Route(
        "POST",
        "/v1/pipelines/{pipeline}/start",
        start,
        "Start a pipeline of the broker's folder",
        tag=TAG,
        description="Only for files in the folder that `waystation serve --pipelines DIR` names.",
        answer=PipelineDetail,
    ),
    Route(
        "POST",
        "/v1/pipelines/{pipeline}/stop",
        stop,
        "Stop a pipeline, wherever it runs",
        tag=TAG,
        answer=PipelineDetail,
    ),
)
