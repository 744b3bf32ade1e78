"""Errors as problem documents."""

from __future__ import annotations

import pytest

import waystation.queues.errors
from tests.protocols.http.kit import Http
from waystation import errors
from waystation.errors import WaystationError
from waystation.protocols.http.transport import problems
from waystation.protocols.http.transport.problems import problem_of, problem_of_status, status_of
from waystation.spark.pipelines.file.problems import PipelineFailed

OTHERS = ("tests.", "waystation.cli", "waystation.client", "waystation.station", "waystation.protocols.kafka")
"""Whose own errors never reach this protocol."""


def all_errors(kind: type[WaystationError] = WaystationError) -> list[type[WaystationError]]:
    found = [error for below in kind.__subclasses__() for error in (below, *all_errors(below))]
    return [error for error in found if not error.__module__.startswith(OTHERS)]


def test_every_error_of_the_vocabulary_has_a_status_of_its_own_and_every_other_that_of_its_kin() -> None:
    vocabulary = [kind for kind in WaystationError.__subclasses__() if kind.__module__ == errors.__name__]
    on_the_client = {errors.RequestFailed, PipelineFailed}
    assert not [kind for kind in vocabulary if kind not in problems.STATUS and kind not in on_the_client]
    for kind in all_errors():
        error = kind.__new__(kind)
        WaystationError.__init__(error, "text")
        if not issubclass(kind, tuple(on_the_client)):
            assert any(base in problems.STATUS for base in kind.__mro__), kind
        problem = problem_of(error)
        assert (problem.status, problem.detail, problem.error) == (status_of(error), "text", kind.__name__)
        assert problem.title
        assert problem.type.startswith("urn:waystation:error:")
    assert waystation.queues.errors is not None  # imported, so that its errors are among them


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("priority: 12 is not between 0 and 9", "priority"),
        ("messages[3].ttl_ms: 0 is not above zero", "messages[3].ttl_ms"),
        ("x-priority: must be a whole number", "x-priority"),
        ("the body is not JSON: truncated", None),
        ("nothing here", None),
    ],
)
def test_the_field_is_named_where_the_error_names_one(text: str, field: str | None) -> None:
    assert problem_of(errors.Invalid(text)).field == field


def test_a_precise_error_has_the_title_of_its_kind() -> None:
    problem = problem_of(errors.UnknownTopic("there is no topic 'x'"))
    assert (problem.title, problem.type, problem.error) == (
        "Not found",
        "urn:waystation:error:not-found",
        "UnknownTopic",
    )


def test_what_is_no_request_has_a_problem_too() -> None:
    assert problem_of_status(431, "too large").title == "Request Header Fields Too Large"


def test_a_json_body_ends_with_a_newline_so_that_a_prompt_is_on_its_own_line(http: Http) -> None:
    http("PUT", "/v1/queues/newline")
    http("POST", "/v1/queues/newline/messages", [{"payload": "x" * 300_000} for _ in range(3)])
    for path in ("/v1/queues/newline", "/v1/queues/newline/peek?count=3", "/v1/openapi.json", "/v1/queues/nowhere"):
        body = http("GET", path, ok=False).body
        assert body.endswith(b"}\n"), path
        assert body.count(b"\n") == 1, path
