"""What `dramatiq tests.clients.dramatiq_app:broker` loads: the application of the stage that the environment names."""

from __future__ import annotations

from tests.clients.dramatiq_kit import build, stage_of_environment

broker, actors = build(stage_of_environment())
