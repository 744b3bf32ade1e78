"""Durations as people write them: one grammar, wherever they are written."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.cli.terminal.units import duration
from waystation.durations import parse_ms, spell_ms
from waystation.errors import Invalid
from waystation.message import MAX_HORIZON_MS
from waystation.spark.pipelines.file.declared import Trigger
from waystation.spark.pipelines.file.problems import PipelineInvalid
from waystation.spark.pipelines.file.reading import read_pipeline
from waystation.topics.partitions.start_position import StartPosition, parse_start

READ = [
    *(("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000), ("2w", 1_209_600_000), ("250ms", 250)),
    *(("1h30m", 5_400_000), ("1.5m", 90_000), (".5s", 500), ("1m1ms", 60_001), ("0s", 0), ("1h 30m", 5_400_000)),
    *(
        ("5 s", 5000),
        ("10 minutes", 600_000),
        ("1 day 2 hours", 93_600_000),
        ("10 Minutes", 600_000),
        ("3min", 180_000),
    ),
]
REFUSED = ["soon", "-5s", "5x", "s", "1h-5m", "inf", "nan", "1e3", "5M", "5 s,", "1h30", "9" * 400 + "s"]
SAYS = "is not a duration: write 250ms, 30s, 5m, 2h, 7d, 1h30m or 10 minutes"


@pytest.mark.parametrize(("text", "ms"), READ)
def test_a_duration_means_the_same_wherever_it_is_written(text: str, ms: int, tmp_path: Path) -> None:
    assert parse_ms(text) == ms
    assert duration(text) == ms / 1000
    assert parse_start(text, 10**13) == StartPosition("time", 10**13 - ms)
    assert pipeline_trigger(tmp_path, text).kind == "interval"


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_duration_is_refused_with_the_same_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=SAYS):
        parse_ms(text)
    with pytest.raises(ArgumentTypeError, match=SAYS):
        duration(text)
    with pytest.raises(PipelineInvalid, match=SAYS):
        pipeline_trigger(tmp_path, text)
    with pytest.raises(Invalid, match="is not a position"):
        parse_start(text, 0)


@pytest.mark.parametrize("text", ["", " "])
def test_nothing_is_no_duration(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=SAYS):
        duration(text)


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("0.5", 0.5), ("0", 0), (".5", 0.5)])
def test_a_bare_number_is_seconds_on_the_command_line_only(text: str, seconds: float, tmp_path: Path) -> None:
    assert duration(text) == seconds
    with pytest.raises(Invalid, match=SAYS):
        parse_ms(text)
    with pytest.raises(PipelineInvalid, match=SAYS):
        pipeline_trigger(tmp_path, text)


@given(st.integers(0, MAX_HORIZON_MS))
def test_a_duration_is_read_as_it_is_written(ms: int) -> None:
    assert parse_ms(spell_ms(ms)) == ms


def pipeline_trigger(folder: Path, text: str) -> Trigger:
    file = folder / "ticks.toml"
    file.write_text(f'trigger = "{text}"\n[source.a]\nrate = 1\n[sink.b]\nfrom = "a"\nconsole = true\n')
    return read_pipeline(file).pipeline.trigger
