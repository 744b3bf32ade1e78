"""The arithmetic of the report: medians, the ratio to Kafka, and aims met or missed."""

from benchmarks import figures


def report_of(*samples: tuple[str, str, str, float]) -> figures.Report:
    machine = figures.Machine("2026-01-01", "a core", 2, "3.11", "a client", 0.1)
    report = figures.Report(machine, rounds=3, full=True)
    for peer, work, unit, value in samples:
        report.peers[peer] = figures.PeerInfo("1", "kept")
        report.add(peer, work, unit, value)
    return report


def cells(report: figures.Report, row: int) -> list[str]:
    """A line of the table's first section, the title not counted."""
    return [cell.strip() for cell in figures.table(report).splitlines()[row + 2].strip("|").split("|")]


def test_a_figure_is_the_median_of_its_rounds() -> None:
    report = report_of(*(("waystation", "produce 100 B", figures.RATE, rate) for rate in (1.0, 100.0, 3.0)))
    assert report.medians() == {"topics": {"waystation": {"produce 100 B": {"messages/s": 3.0}}}}


def test_ours_is_divided_by_kafka_and_held_against_the_aim() -> None:
    report = report_of(
        ("waystation", "produce 100 B", figures.CPU, 0.5),
        ("kafka", "produce 100 B", figures.CPU, 1.0),
        ("waystation", "idle memory", figures.MEMORY, 90),
    )
    assert cells(report, 0) == ["work", "unit", "waystation", "kafka", "waystation ÷ kafka", "aim"]
    assert cells(report, 2) == ["produce 100 B", "broker CPU s/M", "0.50", "1.00", "0.50", "≤ 0.60 met"]
    assert cells(report, 3) == ["idle memory", "MiB", "90.0", "–", "–", "≤ 60.0 MISSED"]


def test_a_peer_that_was_left_out_is_named_with_its_reason() -> None:
    report = report_of(("waystation", "idle memory", figures.MEMORY, 40))
    report.skipped["kafka"] = "no `java`"
    assert "kafka: left out, no `java`." in figures.table(report)


def test_a_noisy_machine_is_told_apart_from_a_quiet_one() -> None:
    assert "NOISY" not in figures.table(report_of(("kafka", *figures.OTHER_LOAD, 0.1)))
    assert "NOISY" in figures.table(
        report_of(("kafka", *figures.OTHER_LOAD, 0.1), ("waystation", *figures.OTHER_LOAD, 1.7))
    )


def test_a_small_run_judges_no_aim() -> None:
    report = report_of(("waystation", "produce 100 B", figures.CPU, 0.5))
    report.full = False
    assert cells(report, 2)[-1] == "≤ 0.60"
    assert "SMALL" in figures.table(report)


def test_a_noisy_machine_judges_memory_alone() -> None:
    report = report_of(
        ("waystation", "produce 100 B", figures.CPU, 0.5),
        ("waystation", "idle memory", figures.MEMORY, 40),
        ("waystation", *figures.OTHER_LOAD, 1.7),
    )
    assert [cells(report, 2)[-1], cells(report, 3)[-1]] == ["≤ 0.60", "≤ 60.0 met"]


def test_topics_and_queues_are_sections_with_their_own_peers_and_medians() -> None:
    report = report_of(("waystation", "idle memory", figures.MEMORY, 40), ("kafka", "idle memory", figures.MEMORY, 400))
    report.peers["nats"] = figures.PeerInfo("2", "kept")
    report.add("waystation", "idle memory", figures.MEMORY, 41, figures.QUEUES)
    report.add("nats", "idle memory", figures.MEMORY, 12, figures.QUEUES)
    heads = [line for line in figures.table(report).splitlines() if line.startswith("| work")]
    assert [[cell.strip() for cell in head.strip("|").split("|")][2:-1] for head in heads] == [
        ["waystation", "kafka", "waystation ÷ kafka"],
        ["waystation", "nats", "waystation ÷ nats"],
    ]
    assert report.medians()["queues"]["waystation"] == {"idle memory": {"MiB": 41}}


def test_an_aim_may_speak_of_the_column_without_fsync() -> None:
    report = report_of()
    for peer, value in (("waystation", 9.0), ("waystation-os", 1.0)):
        report.peers[peer] = figures.PeerInfo("1", "kept")
        report.add(peer, "put to ack 100 B", "p99 ms", value, figures.QUEUES)
    assert cells(report, 2)[-1] == "waystation-os ≤ 5.00 met"
