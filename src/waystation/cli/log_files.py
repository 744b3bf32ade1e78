"""`waystation log`: the files of a data folder, for a person who has to know or repair what is in them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import not_negative
from waystation.cli.terminal.output import confirmed, print_json, print_table
from waystation.errors import CorruptBatch, NotFound

if TYPE_CHECKING:
    from waystation.log.batches.batch import Header
    from waystation.log.opening.repair import Damage


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    dump = verbs.add_parser("dump", help="show the record batches of a segment file (….log)")
    dump.add_argument("file", type=Path)
    dump.add_argument("--json", action="store_true", help="one JSON object per batch")
    dump.set_defaults(run=_dump)

    skip = verbs.add_parser("skip-corrupt", help="make readers skip corrupt batches; their records are lost")
    skip.add_argument("data", type=Path, metavar="DATA_DIR", help="the folder of a broker that is not running")
    skip.add_argument("topic")
    skip.add_argument("partition", type=not_negative)
    skip.add_argument("--dry-run", action="store_true", help="only show what is corrupt")
    skip.add_argument("--yes", action="store_true", help="do not ask")
    skip.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    skip.set_defaults(run=_skip_corrupt)


def _dump(arguments: argparse.Namespace) -> int:
    rows = []
    damage: CorruptBatch | None = None
    try:
        for position, header, good in _batches(arguments.file):
            if arguments.json:
                print_json(_as_json(position, header, good))
            else:
                rows.append(_as_row(position, header, good))
    except CorruptBatch as error:
        damage = error
    if not arguments.json:
        print_table(
            ("position", "offsets", "records", "bytes", "codec", "max timestamp", "producer", "flags", "checksum"), rows
        )
    if damage is not None:
        raise damage
    return 0


def _batches(path: Path) -> Iterator[tuple[int, Header, bool]]:
    """Position and header of each batch, and whether its checksum is right; ends at the zeros that are still unused."""
    from waystation.log.batches.batch import HEADER_SIZE, MAGIC, PREFIX_SIZE, intact, read_header

    end = path.stat().st_size
    position = 0
    with path.open("rb") as file:
        while position < end:
            file.seek(position)
            start = file.read(HEADER_SIZE)
            if not start.strip(b"\0") and not _any_left(file.read):
                return
            header = read_header(start) if len(start) == HEADER_SIZE else None
            if header is None or header.magic != MAGIC or header.length < HEADER_SIZE - PREFIX_SIZE:
                raise CorruptBatch(f"{path}: what is at position {position} is not a record batch")
            if position + header.size > end:
                raise CorruptBatch(f"{path}: the batch at position {position} ends behind the end of the file")
            batch = start + file.read(header.size - HEADER_SIZE)
            yield position, header, intact(batch, 0, header)
            position += header.size


def _any_left(read: object) -> bool:
    """Whether anything but zeros follows."""
    while chunk := read(1024 * 1024):  # type: ignore[operator]
        if chunk.strip(b"\0"):
            return True
    return False


def _as_json(position: int, header: Header, good: bool) -> dict[str, object]:
    return {
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "codec": _codec(header),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.transactional,
        "control": header.control,
        "encrypted": _encrypted(header),
        "checksum_right": good,
    }


def _as_row(position: int, header: Header, good: bool) -> tuple[str | int | None, ...]:
    producer = (
        None if header.producer_id < 0 else f"{header.producer_id}/{header.producer_epoch}@{header.base_sequence}"
    )
    said = (("txn", header.transactional), ("control", header.control), ("encrypted", _encrypted(header)))
    flags = " ".join(name for name, on in said if on)
    return (
        position,
        f"{header.base_offset}–{header.last_offset}",
        header.record_count,
        header.size,
        _codec(header),
        header.max_timestamp,
        producer,
        flags or None,
        "right" if good else "WRONG",
    )


def _encrypted(header: Header) -> bool:
    from waystation.log.batches.batch import ENCRYPTED

    return bool(header.attributes & ENCRYPTED)


def _codec(header: Header) -> str:
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    return names[header.codec] if header.codec < len(names) else f"unknown ({header.codec})"


def _skip_corrupt(arguments: argparse.Namespace) -> int:
    from waystation.broker.repair import find_damage
    from waystation.catalog.sqlite import FILE as CATALOG_FILE

    if not (arguments.data / CATALOG_FILE).exists():
        raise NotFound(f"{arguments.data} is not the data folder of a broker")
    where = (str(arguments.data), arguments.topic, arguments.partition)
    found = find_damage(*where)
    if not arguments.json:
        _print_damage(found)
    done = bool(found) and not arguments.dry_run and confirmed(_question(found), yes=arguments.yes)
    if done:
        found = find_damage(*where, skip=True)
    if arguments.json:
        print_json(
            {"topic": arguments.topic, "partition": arguments.partition, "done": done, "corrupt": _ranges(found)}
        )
    elif done:
        print("readers pass these now; the removed bytes are beside the files (….log.corrupt-POSITION)")
    return 0 if done or arguments.dry_run or not found else 1


def _print_damage(found: list[Damage]) -> None:
    if not found:
        print("nothing is corrupt")
        return
    print_table(
        ("file", "from byte", "to byte", "offsets lost"),
        [(damage.path, damage.start, damage.end, _lost(damage)) for damage in found],
    )


def _lost(damage: Damage) -> str:
    last = "the end of the file" if damage.next_offset is None else damage.next_offset - 1
    return f"{damage.first_offset} to {last}"


def _question(found: list[Damage]) -> str:
    return f"give up {'this range' if len(found) == 1 else f'these {len(found)} ranges'}?"


def _ranges(found: list[Damage]) -> list[dict[str, object]]:
    return [
        {
            "file": damage.path,
            "from_byte": damage.start,
            "to_byte": damage.end,
            "first_offset": damage.first_offset,
            "next_offset": damage.next_offset,
        }
        for damage in found
    ]
