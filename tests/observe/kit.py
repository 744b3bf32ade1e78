"""A scrape, read by Prometheus' own parser, and sums over it. Used by tests/observe and tests/protocols/http."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from tests.protocols.http.kit import Http

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Scrape:
    """Families by name; samples are asked for by name and labels."""

    def __init__(self, families: list[Metric], text: str) -> None:
        self.families = {family.name: family for family in families}
        self.text = text

    @classmethod
    def of(cls, http: Http, *, openmetrics: bool = False) -> Scrape:
        answer = http("GET", "/metrics", headers={"accept": OPENMETRICS} if openmetrics else {})
        text = answer.body.decode()
        return cls(list((read_openmetrics if openmetrics else read_text)(text)), text)

    def sum(self, sample: str, **labels: str) -> float:
        """Over all samples of this name that have these labels."""
        return sum(
            one.value
            for family in self.families.values()
            for one in family.samples
            if one.name == sample and labels.items() <= one.labels.items()
        )

    def labels(self, sample: str, label: str) -> set[str]:
        return {one.labels[label] for family in self.families.values() for one in family.samples if one.name == sample}

    def samples(self) -> set[str]:
        return {one.name for family in self.families.values() for one in family.samples}


class Growth:
    """What has grown since it was made."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._before = Scrape.of(http)

    def now(self) -> Scrape:
        return Scrape.of(self._http)

    def of(self, sample: str, **labels: str) -> int:
        return round(self.now().sum(sample, **labels) - self._before.sum(sample, **labels))

    def messages(self, protocol: str) -> dict[str, int]:
        """By what happened to them."""
        after = self.now()
        names = ("published", "delivered", "acked", "rejected", "released")
        grown = {
            name: after.sum(f"waystation_messages_{name}_total", door=protocol)
            - self._before.sum(f"waystation_messages_{name}_total", door=protocol)
            for name in names
        }
        return {name: round(count) for name, count in grown.items() if count}
