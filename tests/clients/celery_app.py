"""What `celery -A tests.clients.celery_app:app` loads: the application of the stage that the environment names."""

from __future__ import annotations

from tests.clients.celery_kit import build, stage_of_environment, tell_when_ready

stage = stage_of_environment()
app = build(stage)
tell_when_ready(stage)
