"""The parts that figures are made of: histograms, the busiest names, the last hour."""

from __future__ import annotations

import random
import sys

from hypothesis import given
from hypothesis import strategies as st

from tests.test_architecture import modules_loaded_by
from waystation.observe.busiest import Busiest
from waystation.observe.histogram import SECONDS, Histogram, Mean
from waystation.observe.history import POINTS, SERIES, SeriesHistory
from waystation.observe.meters import MOST_NAMES, OTHER, ProtocolMeter
from waystation.observe.rates import Grown, QueueRates, Rates


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 1000))))
def test_a_histogram_counts_every_value_in_the_bucket_that_prometheus_expects(values: list[tuple[float, int]]) -> None:
    histogram = Histogram(SECONDS)
    for value, times in values:
        histogram.add(value, times)
    for bound, count in histogram.cumulative():
        assert count == sum(times for value, times in values if value <= bound)
    assert histogram.count == sum(times for _, times in values)
    assert abs(histogram.sum - sum(value * times for value, times in values)) <= 1e-6 * max(1.0, histogram.sum)


def test_a_mean_is_of_what_came_since_the_last_time() -> None:
    histogram, mean = Histogram(SECONDS), Mean()
    assert mean.since(histogram) == 0.0
    histogram.add(1.0)
    histogram.add(3.0)
    assert mean.since(histogram) == 2.0
    histogram.add(5.0)
    assert mean.since(histogram) == 5.0
    assert mean.since(histogram) == 0.0


def test_the_sum_over_all_names_is_exact_and_no_counter_goes_down() -> None:
    dice = random.Random(7)
    busiest = Busiest(5, width=2)
    total = [0, 0]
    seen: dict[str, list[int]] = {}
    for turn in range(400):
        hot = turn // 40  # others are busy after a while
        grown = {}
        for _ in range(dice.randrange(12)):
            name = f"n{dice.randrange(hot, hot + 20)}"
            grown[name] = [dice.randrange(100), dice.randrange(1000)]
        for counts in grown.values():
            total = [total[0] + counts[0], total[1] + counts[1]]
        before = dict(busiest.members)
        other = list(busiest.other)
        busiest.note(grown, 5.0, lambda counts: counts[0])
        assert len(busiest.members) <= 5
        assert all(now >= was for now, was in zip(busiest.other, other, strict=True))
        for name, counts in busiest.items():
            if name in before and name in seen:
                assert all(now >= was for now, was in zip(counts, seen[name], strict=True))
        seen = {name: list(counts) for name, counts in busiest.items()}
        for index in range(2):
            assert busiest.other[index] + sum(counts[index] for counts in busiest.members.values()) == total[index]
    busiest.keep(lambda name: False)
    assert not busiest.members
    assert busiest.other == total


def test_a_name_gives_way_to_one_that_is_twice_as_busy_and_not_before() -> None:
    busiest = Busiest(1, width=1)
    busiest.note({"first": [100]}, 5.0, lambda counts: counts[0])
    busiest.note({"second": [150]}, 5.0, lambda counts: counts[0])
    assert set(busiest.members) == {"first"}
    busiest.note({"second": [250]}, 5.0, lambda counts: counts[0])
    assert busiest.members == {"second": [250]}
    assert busiest.other == [100 + 150]


def test_the_last_hour_has_a_fixed_size_and_forgets_the_oldest() -> None:
    history = SeriesHistory()
    size = sys.getsizeof(history._times) + sum(map(sys.getsizeof, history._rings.values()))
    assert size < 100_000
    for point in range(POINTS + 10):
        history.add(5_000 * point, dict.fromkeys(SERIES, float(point)))
    assert len(history) == POINTS
    times, series = history.since(0)
    assert times[0] == 5_000 * 10
    assert times[-1] == 5_000 * (POINTS + 9)
    assert series["publish"][0] == 10.0
    assert sorted(series) == sorted(SERIES)
    times, series = history.since(times[-3])
    assert len(times) == 2
    assert series["ack"] == [POINTS + 8.0, POINTS + 9.0]
    assert sys.getsizeof(history._times) + sum(map(sys.getsizeof, history._rings.values())) == size


def test_names_of_calls_and_errors_are_bounded() -> None:
    meter = ProtocolMeter("kafka")
    for number in range(3 * MOST_NAMES):
        meter.call(f"call-{number}").add(0.1)
        meter.failed(f"error-{number}")
    assert len(meter.calls) == len(meter.errors) == MOST_NAMES + 1
    assert meter.calls[OTHER].count == meter.errors[OTHER] == 2 * MOST_NAMES
    assert meter.requests == meter.failures == 3 * MOST_NAMES


def test_rates_of_what_was_not_used_are_zero_and_unknown_before_the_first_sample() -> None:
    rates = Rates()
    assert rates.queue("q") is None
    assert rates.topic("t") is None
    rates.queues = Grown({"q": [2, 4, 6, 0], "r": [1, 0, 0, 0]}, 2.0, sum)
    assert rates.queue("q") == QueueRates(1.0, 2.0, 3.0)
    assert rates.queue("idle") == QueueRates()
    assert rates.queues.busiest == ["q", "r"]


def test_prometheus_client_is_loaded_by_the_first_scrape_and_not_before() -> None:
    loaded = modules_loaded_by("import waystation.broker.open, waystation.protocols.http.request_dispatcher")
    assert not {name for name in loaded if name.startswith("prometheus_client")}
    loaded = modules_loaded_by("import waystation.broker.open")
    assert not {name for name in loaded if name.startswith("waystation.admin.views.view_")}
