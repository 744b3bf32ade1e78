"""Pseudo-random sequences of what clients do: queues of all kinds, exchanges, messages, consumers, verdicts, farewells.

The same seed gives the same steps. What is known and documented to differ from RabbitMQ is left out
(`docs/reference/amqp.md`): several consumers of the same priority, an expiration of some messages only, messages that
are given back to a queue with a bounded length, and what RabbitMQ's quorum queues cannot do.
"""

from __future__ import annotations

import random
from typing import Any

from tests.protocols.amqp.same_side import EXCHANGES, QUEUES, Step

SOON_MS = "150"
"""When this has been published, whoever plays the steps waits until it is over."""
KEYS = ("a", "a.b", "a.b.c", "", "q0", "q1")
PATTERNS = ("a", "a.*", "#", "a.#", "*.b", "#.c", "", "q0")
KINDS = ("direct", "topic", "fanout", "headers")
WEIGHTS = {
    "publish": 30, "consume": 9, "cancel": 3, "get": 9, "ack": 14, "nack": 7, "reject": 6, "recover": 2, "qos": 2,
    "purge": 1, "delete": 1.5, "declare": 3, "exchange": 1.5, "exchange_delete": 1, "bind": 3, "unbind": 1.5,
    "ebind": 1.5, "eunbind": 0.5, "confirm": 1, "tx_select": 0.8, "tx_commit": 2, "tx_rollback": 1.2,
    "close_channel": 2, "close_connection": 1, "drop_connection": 1, "sleep": 1.5,
}  # fmt: skip
FORGIVES = ("close_channel", "close_connection", "recover")
"""Not with quorum queues: RabbitMQ counts deliveries that ended so, and gives back in another order."""
GIVES_BACK = ("recover", "close_channel", "close_connection", "drop_connection")


def sequence(seed: int, length: int = 28) -> list[Step]:
    return Steps(random.Random(seed), length).steps


class Steps:
    """One sequence in the making."""

    def __init__(self, dice: random.Random, length: int) -> None:
        self._dice = dice
        self._style = dice.choice(("classic", "classic", "mixed", "mixed", "quorum"))
        self._bounded = self._chance(0.35)
        self._short = self._chance(0.1)  # every message expires soon
        self._several = self._chance(0.4)  # consumers of one queue
        self._connections = (0, 1) if self._chance(0.6) else (0,)
        self._channels = (1, 2) if self._chance(0.5) else (1,)
        self._queues = QUEUES[: dice.randint(1, 4)]
        self._declared = {queue: self._queue() for queue in QUEUES}
        self._kinds = {exchange: dice.choice(KINDS) for exchange in EXCHANGES}
        self._consumers: dict[str, tuple[int, int, str]] = {}
        self._transactional: set[tuple[int, int]] = set()
        self._serial = 0
        self.steps: list[Step] = []
        self._prepare()
        left_out = GIVES_BACK if self._bounded else (FORGIVES if self._quorum else ())
        weights = {op: weight for op, weight in WEIGHTS.items() if op not in left_out}
        while len(self.steps) < length:
            self._add(dice.choices(list(weights), list(weights.values()))[0])

    def _chance(self, share: float) -> bool:
        return self._dice.random() < share

    @property
    def _quorum(self) -> bool:
        return self._style != "classic"

    @property
    def _keyless(self) -> bool:
        """Whether dead letters may go by the messages' own keys."""
        arguments = [declared["arguments"] for declared in self._declared.values()]
        return any("x-dead-letter-exchange" in one and "x-dead-letter-routing-key" not in one for one in arguments)

    def _prepare(self) -> None:
        for queue in self._queues:
            self._put("declare", queue=queue, **self._declared[queue])
        for exchange in EXCHANGES[: self._dice.randint(0, 3)]:
            alternate = {"alternate-exchange": self._dice.choice(("e3", "missing", "e0"))} if self._chance(0.2) else {}
            flags = {"durable": self._chance(0.3), "auto_delete": self._chance(0.15), "internal": self._chance(0.05)}
            self._put("exchange", exchange=exchange, type=self._kinds[exchange], arguments=alternate, **flags)
            for _ in range(self._dice.randint(1, 3)):
                self._put("bind", **self._binding(exchange))
        if self._chance(0.3):
            self._put("confirm")
        if self._chance(0.4):
            self._put("qos", **self._qos())

    def _put(self, op: str, **arguments: Any) -> None:
        self.steps.append(Step(op, self._dice.choice(self._connections), self._dice.choice(self._channels), arguments))

    def _add(self, op: str) -> None:
        """A step, unless it would make no sense now."""
        make = getattr(self, f"_{op}", None)
        if make is None:
            self._put(op)
            return
        where = (self._dice.choice(self._connections), self._dice.choice(self._channels))
        made = make(where)
        if isinstance(made, Step):
            self.steps.append(made)
        elif made is not None:
            self.steps.append(Step(op, *where, made))

    # -- queues and exchanges -----------------------------------------------------------------------------------------

    def _queue(self) -> dict[str, Any]:
        dice, chance = self._dice, self._chance
        arguments: dict[str, Any] = {}
        flags: dict[str, Any] = {"durable": True}
        quorum = self._style == "quorum" or (self._style == "mixed" and chance(0.12))
        if quorum:
            arguments["x-queue-type"] = "quorum"
            if chance(0.7):
                arguments["x-delivery-limit"] = dice.choice((0, 1, 2, 3))
        else:
            flags = {"durable": chance(0.5), "exclusive": chance(0.12), "auto_delete": chance(0.12)}
            if chance(0.15):
                arguments["x-max-priority"] = dice.choice((1, 5, 10))
            if chance(0.12):
                arguments["x-single-active-consumer"] = True
        if chance(0.15):
            arguments["x-message-ttl"] = 60_000
        if self._bounded and chance(0.5):
            arguments["x-max-length"] = dice.choice((1, 2, 3))
            if not quorum and chance(0.6):
                arguments["x-overflow"] = dice.choice(("drop-head", "reject-publish", "reject-publish-dlx"))
        if chance(0.4):
            arguments["x-dead-letter-exchange"] = dice.choice(("", "e0", "e1", "missing"))
            if chance(0.6):
                arguments["x-dead-letter-routing-key"] = dice.choice(QUEUES)
        if chance(0.05):
            arguments["x-expires"] = 60_000
        return {**flags, "arguments": arguments}

    def _binding(self, exchange: str) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if self._kinds.get(exchange) == "headers" or exchange == "amq.headers":
            if self._chance(0.4):
                arguments["x-match"] = self._dice.choice(("all", "any"))
            if self._chance(0.7):
                arguments["h"] = self._dice.choice(("1", 1, True, None))
            if self._chance(0.3):
                arguments["g"] = self._dice.choice(("x", "y"))
        queue, key = self._dice.choice(self._queues), self._dice.choice(PATTERNS)
        return {"queue": queue, "exchange": exchange, "key": key, "arguments": arguments}

    def _declare(self, where: tuple[int, int]) -> dict[str, Any]:
        queue = self._dice.choice(self._queues if self._chance(0.8) else QUEUES)
        if self._chance(0.2):
            self._declared[queue] = self._queue()
        return {"queue": queue, **self._declared[queue], "passive": self._chance(0.1)}

    def _delete(self, where: tuple[int, int]) -> dict[str, Any]:
        free = not self._quorum and not self._consumers
        flags = {"if_unused": not self._quorum and self._chance(0.2), "if_empty": free and self._chance(0.2)}
        return {"queue": self._dice.choice(self._queues), **flags}

    def _purge(self, where: tuple[int, int]) -> dict[str, Any]:
        return {"queue": self._dice.choice(self._queues if self._chance(0.9) else QUEUES)}

    def _exchange(self, where: tuple[int, int]) -> dict[str, Any]:
        exchange = self._dice.choice(EXCHANGES)
        if self._chance(0.15):
            self._kinds[exchange] = self._dice.choice(KINDS)
        flags = {"passive": self._chance(0.1), "auto_delete": self._chance(0.1)}
        arguments = {"alternate-exchange": "e1"} if self._chance(0.1) else {}
        return {"exchange": exchange, "type": self._kinds[exchange], "arguments": arguments, **flags}

    def _exchange_delete(self, where: tuple[int, int]) -> dict[str, Any]:
        names = EXCHANGES if self._chance(0.9) else ("amq.direct",)
        return {"exchange": self._dice.choice(names), "if_unused": self._chance(0.4)}

    def _bind(self, where: tuple[int, int]) -> dict[str, Any]:
        return self._binding(self._dice.choice(EXCHANGES if self._chance(0.8) else ("amq.topic", "amq.headers")))

    _unbind = _bind

    def _ebind(self, where: tuple[int, int]) -> dict[str, Any]:
        to, exchange = self._dice.choice(EXCHANGES), self._dice.choice(EXCHANGES)
        return {"to": to, "exchange": exchange, "key": self._dice.choice(PATTERNS)}

    _eunbind = _ebind

    # -- messages -----------------------------------------------------------------------------------------------------

    def _publish(self, where: tuple[int, int]) -> dict[str, Any]:
        self._serial += 1
        if self._chance(0.6):
            to = {"exchange": "", "key": self._dice.choice(self._queues if self._chance(0.95) else QUEUES)}
        else:
            names = EXCHANGES[:3] if self._chance(0.9) else ("amq.topic", "amq.headers", "e3", "nope")
            to = {"exchange": self._dice.choice(names), "key": self._dice.choice(KEYS)}
        count = self._dice.choice((1, 1, 2, 3))
        known = {"count": count, "body": f"b{self._serial}", "mandatory": self._chance(0.2)}
        return {**to, **known, "properties": self._properties()}

    def _properties(self) -> dict[str, Any]:
        dice, chance = self._dice, self._chance
        found: dict[str, Any] = {}
        if chance(0.5):
            found["delivery_mode"] = dice.choice((1, 2))
        if chance(0.2):
            found["priority"] = dice.choice((1, 3, 5, 9, 200))
        if self._short:
            found["expiration"] = SOON_MS
        elif chance(0.1):
            found["expiration"] = "60000"
        if chance(0.2):
            found["message_id"] = dice.choice(("m1", "m2"))
        if chance(0.1):
            found |= {"correlation_id": "corr", "reply_to": "somewhere"}
        if chance(0.1):
            found |= {"content_type": "text/plain", "content_encoding": "utf-8"}
        if chance(0.1):
            found |= {"app_id": "app", "message_type": "kind", "user_id": "guest"}
        headers: dict[str, Any] = {}
        if chance(0.25):
            headers["h"] = dice.choice(("1", "2", 1, 2, True, None, [1, "a"], {"x": 1}))
        if chance(0.1):
            headers["g"] = "x"
        if chance(0.08):
            headers["CC"] = dice.choice((["q1"], ["a", "a.b"], ["q2", "q3"], []))
        if chance(0.06) and not self._keyless:
            headers["BCC"] = dice.choice((["q1"], ["a.b.c"], ["q2"]))
        return {**found, "headers": headers} if headers else found

    def _consume(self, where: tuple[int, int]) -> dict[str, Any] | None:
        queue = self._dice.choice(self._queues)
        if queue in self._consumers and not self._several:
            return None
        self._serial += 1
        tag = f"t{self._serial}"
        self._consumers[queue] = (*where, tag)
        declared = [step.arguments["arguments"] for step in self.steps if step.op == "declare"]
        inclusive = any("x-single-active-consumer" in one or "x-queue-type" in one for one in declared)
        flags = {"no_ack": self._chance(0.15), "exclusive": self._chance(0.08) and not inclusive}
        arguments = {"x-priority": 100 - self._serial} if self._several else {}
        return {"queue": queue, "tag": tag, "arguments": arguments, **flags}

    def _cancel(self, where: tuple[int, int]) -> dict[str, Any] | Step:
        if not self._consumers or self._chance(0.1):
            return {"tag": "nobody"}
        connection, channel, tag = self._consumers.pop(self._dice.choice(sorted(self._consumers)))
        return Step("cancel", connection, channel, {"tag": tag})

    def _get(self, where: tuple[int, int]) -> dict[str, Any]:
        return {"queue": self._dice.choice(self._queues if self._chance(0.97) else QUEUES), "no_ack": self._chance(0.2)}

    def _qos(self, where: tuple[int, int] = (0, 1)) -> dict[str, Any]:
        count = self._dice.choice((0, 1, 2, 5))
        if self._quorum:  # RabbitMQ 3.10 loses count of credit when a message exceeds its limit of deliveries
            return {"count": 0}
        return {"count": count, "global_": self._chance(0.3)}

    def _ack(self, where: tuple[int, int]) -> dict[str, Any]:
        which = self._dice.choices(("one", "upto", "all", "bad"), (70, 18, 10, 2))[0]
        return {"which": which, "index": self._dice.randint(0, 5)}

    def _nack(self, where: tuple[int, int]) -> dict[str, Any]:
        requeue = self._chance(0.6) and not self._bounded
        return {**self._ack(where), "requeue": requeue, **({"index": 0} if requeue and self._quorum else {})}

    _reject = _nack

    def _tx_select(self, where: tuple[int, int]) -> dict[str, Any]:
        self._transactional.add(where)
        return {}

    def _tx_commit(self, where: tuple[int, int], op: str = "tx_commit") -> Step | None:
        if not self._transactional:
            return None
        return Step(op, *self._dice.choice(sorted(self._transactional)), {})

    def _tx_rollback(self, where: tuple[int, int]) -> Step | None:
        return self._tx_commit(where, "tx_rollback")
