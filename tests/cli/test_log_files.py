"""`waystation log`: looking into segment files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import waystation
from tests.cli.kit import Cli
from waystation.cli.main import main
from waystation.log.batches.batch import build, build_marker, place
from waystation.log.batches.compression import ZSTD

NOW_MS = 1_772_366_400_000


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """Three records, a compressed pair of a transaction, its marker, and room that is not used yet."""
    batches = [
        (0, build([(b"k", b"v", ())] * 3, NOW_MS)),
        (3, build([(None, b"x" * 100, ())] * 2, NOW_MS + 1, codec=ZSTD, producer_id=7, producer_epoch=1,
                  base_sequence=4, attributes=0x10)),
        (5, build_marker(7, 1, True, 0, NOW_MS + 2)),
    ]  # fmt: skip
    for offset, batch in batches:
        place(batch, offset, 0)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(batch for _, batch in batches) + bytes(5000))
    return path


def test_batches_are_shown_without_their_content(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "dump", str(segment), "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(b["base_offset"], b["last_offset"], b["records"], b["codec"]) for b in shown] == [
        (0, 2, 3, "none"),
        (3, 4, 2, "zstd"),
        (5, 5, 1, "none"),
    ]
    assert [(b["producer_id"], b["transactional"], b["control"]) for b in shown[1:]] == [
        (7, True, False),
        (7, True, True),
    ]
    assert all(b["checksum_right"] for b in shown)
    assert main(["log", "dump", str(segment)]) == 0
    assert "7/1@4" in capsys.readouterr().out


def test_a_flipped_bit_shows(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)
    main(["log", "dump", str(segment), "--json"])
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [b["checksum_right"] for b in shown] == [False, True, True]


@pytest.mark.parametrize("size", [30, 70, 100])
def test_a_torn_end_is_told_with_its_position(segment: Path, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    segment.write_bytes(segment.read_bytes()[:size])
    assert main(["log", "dump", str(segment)]) == 1
    assert "position" in capsys.readouterr().err


def test_what_is_no_segment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear reader, " * 20)
    assert main(["log", "dump", str(path)]) == 1
    assert "not a record batch" in capsys.readouterr().err
    assert main(["log", "dump", str(tmp_path / "gone")]) == 1
    assert "gone" in capsys.readouterr().err


def test_readers_pass_a_corrupt_batch_after_it_was_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    with waystation.open(data) as broker:
        for word in ("first", "second", "third"):
            Cli(broker.kafka)("publish", "t", word)
    (segment,) = data.glob("topics/t.*/0/*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"second")] ^= 1
    segment.write_bytes(content)

    with waystation.open(data) as broker:
        done = Cli(broker.kafka)("consume", "t", code=1)
        assert done.lines == ["first"]
        assert "skip-corrupt" in done.err
        assert main(["log", "skip-corrupt", str(data), "t", "0"]) == 1
        assert "in use" in capsys.readouterr().err

    assert main(["log", "skip-corrupt", str(data), "t", "0", "--dry-run", "--json"]) == 0
    preview = json.loads(capsys.readouterr().out)
    assert preview["done"] is False
    assert [(found["first_offset"], found["next_offset"]) for found in preview["corrupt"]] == [(1, 2)]
    assert segment.read_bytes() == content

    assert main(["log", "skip-corrupt", str(data), "t", "0", "--yes"]) == 0
    with waystation.open(data) as broker:
        assert Cli(broker.kafka)("consume", "t", "--format", "{offset} {value}\\n").lines == ["0 first", "2 third"]
    capsys.readouterr()
    assert main(["log", "skip-corrupt", str(data), "t", "0"]) == 0
    assert "nothing is corrupt" in capsys.readouterr().out
    assert main(["log", "skip-corrupt", str(data), "t", "7"]) == 1
    assert main(["log", "skip-corrupt", str(tmp_path / "gone"), "t", "0"]) == 1
    assert not (tmp_path / "gone").exists()
