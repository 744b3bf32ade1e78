"""What RabbitMQ answers to exchange.* and queue.* methods, case by case, as it was seen to answer them.

A case is a few steps that succeed and a last one whose outcome counts. The same table is run against the protocol's own
code (test_declaring.py) and through a real client against a real server (test_declaring_pika.py).
"""

from __future__ import annotations

from tests.protocols.amqp.declaring_steps import (
    Case,
    Refusal,
    bind,
    consume,
    declare,
    delete,
    differs,
    drop,
    durable,
    exchange,
    invalid,
    link,
    property_of,
    publish,
    purge,
    unbind,
    unfit,
    unlink,
)

LOCKED = Refusal(
    405,
    "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on another"
    " connection or the exclusive property value does not match that of the original declaration.",
)
NO_QUEUE = Refusal(404, "no queue 'q' in vhost '/'")
NO_EXCHANGE = Refusal(404, "no exchange 'e' in vhost '/'")
NO_TARGET = Refusal(404, "no exchange 'd' in vhost '/'")
NONE_DECLARED = Refusal(404, "no previously declared queue")
DEFAULT_EXCHANGE = Refusal(403, "operation not permitted on the default exchange")


def _numbers() -> list[Case]:
    """What every argument that is a number refuses."""
    cases = []
    for name in ("x-message-ttl", "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority"):
        for value, kind in (("1", "longstr"), (True, "bool"), (None, "void"), ([1], "array"), ({"a": 1}, "table")):
            refusal = invalid(name, f'"expected integer, got {kind}"')
            cases.append(Case(f"{name} is no {kind}", [durable(**{name: value})], refusal))
        cases.append(Case(f"{name} below zero", [durable(**{name: -1})], invalid(name, "{value_negative,-1}")))
        cases.append(Case(f"{name} of one", [durable(**{name: 1})]))
    for name in ("x-message-ttl", "x-expires"):
        refusal = invalid(name, "{value_too_large,4611686018427387904}")
        cases.append(Case(f"{name} of ages", [durable(**{name: 2**62})], refusal))
    cases += [Case(f"{name} of none", [durable(**{name: 0})]) for name in ("x-message-ttl", "x-max-length")]
    cases.append(Case("huge x-max-length-bytes", [durable(x_max_length_bytes=2**62)]))
    return cases


def _again() -> list[Case]:
    """A queue that is there, declared again with other arguments."""
    cases = []
    for name, (first, second) in {
        "x-message-ttl": (1000, 2000),
        "x-expires": (60000, 70000),
        "x-max-length": (10, 20),
        "x-max-length-bytes": (1000, 2**40),
        "x-max-priority": (5, 10),
        "x-dead-letter-exchange": ("a", "b"),
        "x-overflow": ("reject-publish", "drop-head"),
        "x-single-active-consumer": (True, False),
    }.items():
        said = {True: "true", False: "false"}.get(first, str(first)) if isinstance(first, bool) else str(first)
        other = "false" if second is False else str(second)
        kind = {int: "signedint", str: "longstr", bool: "bool"}[type(first)]
        full = f"the value '{said}' of type '{kind}'"
        there, changed = durable(**{name: first}), durable(**{name: second})
        cases += [
            Case(f"{name} is another", [there, changed], differs(name, f"'{other}'", f"'{said}'")),
            Case(f"{name} is not given", [there, durable()], differs(name, "none", full)),
            Case(f"{name} is new", [durable(), there], differs(name, full, "none")),
            Case(f"{name} alike", [there, there]),
        ]
    return cases


QUEUES = [
    Case("a queue", [declare()]),
    Case("a queue again", [declare(), declare()]),
    Case("a missing queue, passively", [declare(passive=True)], NO_QUEUE),
    Case("a nameless queue, passively", [declare("", passive=True)], Refusal(404, "no queue '' in vhost '/'")),
    Case(
        "the last queue has no name", [declare(), declare("", passive=True)], Refusal(404, "no queue '' in vhost '/'")
    ),
    Case("passively, nothing else counts", [durable(), declare(passive=True, auto_delete=True)]),
    Case(
        "a reserved name",
        [declare("amq.mine")],
        Refusal(403, "queue name 'amq.mine' contains reserved prefix 'amq.*'"),
    ),
    Case(
        "a reserved name, passively",
        [declare("amq.gen-x", passive=True)],
        Refusal(404, "no queue 'amq.gen-x' in vhost '/'"),
    ),
    Case("a name of 255 bytes", [declare("n" * 255)]),
    Case("a name of other letters", [declare("Zahlung für Ümläut 日本")]),
    Case("not durable any more", [durable(), declare()], differs("durable", "'false'", "'true'")),
    Case("durable now", [declare(), durable()], differs("durable", "'true'", "'false'")),
    Case(
        "auto-delete now",
        [durable(), declare(durable=True, auto_delete=True)],
        differs("auto_delete", "'true'", "'false'"),
    ),
    Case("exclusive now", [durable(), declare(durable=True, exclusive=True)], LOCKED),
    Case("not exclusive any more", [declare(exclusive=True), declare()], LOCKED),
    Case("exclusive again", [declare(exclusive=True), declare(exclusive=True)]),
    Case("another's, exclusively", [declare(exclusive=True).elsewhere(), declare(exclusive=True)], LOCKED),
    Case("another's", [declare(exclusive=True).elsewhere(), declare()], LOCKED),
    Case("another's, passively", [declare(exclusive=True).elsewhere(), declare(passive=True)], LOCKED),
    Case("purge another's", [declare(exclusive=True).elsewhere(), purge()], LOCKED),
    Case("delete another's", [declare(exclusive=True).elsewhere(), delete()], LOCKED),
    Case("bind another's", [declare(exclusive=True).elsewhere(), exchange(), bind()], LOCKED),
    *_numbers(),
    Case(
        "x-expires at once",
        [durable(x_expires=0)],
        invalid("x-expires", "{value_zero,0}"),
    ),
    Case("x-max-priority of 255", [durable(x_max_priority=255)]),
    Case("x-max-priority of 256", [durable(x_max_priority=256)], invalid("x-max-priority", "{max_value_exceeded,256}")),
    Case(
        "a dead-letter exchange that is a number",
        [durable(x_dead_letter_exchange=1)],
        Refusal(406, "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"),
    ),
    Case("a dead-letter exchange that is not there", [durable(x_dead_letter_exchange="no such")]),
    Case("the default exchange for dead letters", [durable(x_dead_letter_exchange="", x_dead_letter_routing_key="k")]),
    Case(
        "a dead-letter key without an exchange",
        [durable(x_dead_letter_routing_key="k")],
        invalid("x-dead-letter-routing-key", "routing_key_but_no_dlx_defined"),
    ),
    Case(
        "a dead-letter key that is a number",
        [durable(x_dead_letter_exchange="e", x_dead_letter_routing_key=1)],
        invalid("x-dead-letter-routing-key", "{unacceptable_type,signedint}"),
    ),
    Case(
        "another dead-letter key",
        [
            durable(x_dead_letter_exchange="a", x_dead_letter_routing_key="a"),
            durable(x_dead_letter_exchange="a", x_dead_letter_routing_key="b"),
        ],
        differs("x-dead-letter-routing-key", "'b'", "'a'"),
    ),
    Case("x-overflow drop-head", [durable(x_overflow="drop-head")]),
    Case("x-overflow reject-publish", [durable(x_overflow="reject-publish")]),
    Case("x-overflow reject-publish-dlx", [durable(x_overflow="reject-publish-dlx")]),
    Case("x-overflow unheard of", [durable(x_overflow="no such")], invalid("x-overflow", "invalid_overflow")),
    Case("x-overflow of a number", [durable(x_overflow=1)], invalid("x-overflow", "{unacceptable_type,signedint}")),
    Case(
        "x-single-active-consumer of text",
        [durable(x_single_active_consumer="true")],
        invalid("x-single-active-consumer", "{unacceptable_type,longstr}"),
    ),
    Case("x-queue-mode lazy", [durable(x_queue_mode="lazy")]),
    Case(
        "x-queue-mode unheard of",
        [durable(x_queue_mode="no such")],
        invalid("x-queue-mode", "\"unsupported queue mode 'no such'\""),
    ),
    Case("x-queue-version", [durable(x_queue_version=2)]),
    *_again(),
    Case("unknown arguments", [durable(x_no_such=1, ha="all"), durable(x_no_such=2)]),
]

TYPES = [
    Case("classic", [durable(x_queue_type="classic"), durable()]),
    Case("untyped is classic", [durable(), durable(x_queue_type="classic")]),
    Case(
        "x-queue-type unheard of",
        [durable(x_queue_type="no such")],
        invalid("x-queue-type", "\"unsupported queue type 'no such'\""),
    ),
    Case(
        "x-queue-type of a number", [durable(x_queue_type=1)], invalid("x-queue-type", "{unacceptable_type,signedint}")
    ),
    Case(
        "quorum",
        [
            durable(
                x_queue_type="quorum",
                x_message_ttl=60000,
                x_expires=50000,
                x_max_length=5,
                x_overflow="reject-publish",
                x_single_active_consumer=True,
                x_dead_letter_exchange="d",
                x_delivery_limit=3,
            )
        ],
    ),
    Case(
        "an exclusive quorum queue",
        [declare(durable=True, exclusive=True, arguments={"x-queue-type": "quorum"})],
        property_of("exclusive-owner"),
    ),
    Case(
        "an auto-delete quorum queue",
        [declare(durable=True, auto_delete=True, arguments={"x-queue-type": "quorum"})],
        property_of("auto-delete"),
    ),
    Case(
        "a quorum queue that is not durable",
        [declare(arguments={"x-queue-type": "quorum"})],
        property_of("non-durable"),
    ),
    Case(
        "a server-named quorum queue",
        [declare("", durable=True, arguments={"x-queue-type": "quorum"})],
        Refusal(406, "Cannot declare a server-named queue for type rabbit_quorum_queue"),
    ),
    Case(
        "priorities of a quorum queue",
        [durable(x_queue_type="quorum", x_max_priority=5)],
        unfit("x-max-priority", "quorum"),
    ),
    Case("a lazy quorum queue", [durable(x_queue_type="quorum", x_queue_mode="lazy")], unfit("x-queue-mode", "quorum")),
    Case("x-max-age of a classic queue", [durable(x_max_age="1h")], unfit("x-max-age", "classic")),
    Case(
        "classic, then quorum",
        [durable(), durable(x_queue_type="quorum")],
        differs("x-queue-type", "the value 'quorum' of type 'longstr'", "none"),
    ),
    Case(
        "quorum, then classic",
        [durable(x_queue_type="quorum"), durable(x_queue_type="classic")],
        differs("x-queue-type", "'classic'", "'quorum'"),
    ),
    Case(
        "quorum, then nothing",
        [durable(x_queue_type="quorum"), durable()],
        differs("x-queue-type", "none", "the value 'quorum' of type 'longstr'"),
    ),
    Case(
        "another delivery limit",
        [durable(x_queue_type="quorum", x_delivery_limit=3), durable(x_queue_type="quorum", x_delivery_limit=4)],
        differs("x-delivery-limit", "'4'", "'3'"),
    ),
    Case(
        "a stream again as a queue",
        [durable(x_queue_type="stream"), durable()],
        differs("x-queue-type", "none", "the value 'stream' of type 'longstr'"),
    ),
    Case("a stream that is not durable", [declare(arguments={"x-queue-type": "stream"})], property_of("non-durable")),
    Case(
        "a server-named stream",
        [declare("", durable=True, arguments={"x-queue-type": "stream"})],
        Refusal(406, "Cannot declare a server-named queue for type rabbit_stream_queue"),
    ),
    Case(
        "x-expires of a stream",
        [durable(x_queue_type="stream", x_expires=1)],
        unfit("x-expires", "stream"),
    ),
    Case(
        "purge a stream",
        [durable(x_queue_type="stream"), purge()],
        Refusal(540, "queue.purge not supported by stream queues queue 'q' in vhost '/'"),
    ),
    Case("bind a stream", [durable(x_queue_type="stream"), exchange(), bind(), unbind()]),
    Case("delete a stream", [durable(x_queue_type="stream"), delete(), declare()]),
]

BINDINGS = [
    Case("bind", [declare(), exchange(), bind(), bind()]),
    Case("bind a missing queue", [exchange(), bind()], NO_QUEUE),
    Case("bind to a missing exchange", [declare(), bind()], NO_EXCHANGE),
    Case("bind what is not there to what is not there", [bind()], NO_EXCHANGE),
    Case("bind to the default exchange", [declare(), bind(exchange="")], DEFAULT_EXCHANGE),
    Case("bind the last queue", [declare(), exchange(), bind("", "e", "k")]),
    Case("bind the last queue by its name", [declare(), exchange(), bind("", "e", "")]),
    Case("bind the last queue of none", [exchange(), bind("", "e", "k")], NONE_DECLARED),
    Case("bind to a predeclared exchange", [declare(), bind(exchange="amq.topic")]),
    Case("unbind", [declare(), exchange(), bind(), unbind()]),
    Case("unbind what is not bound", [declare(), exchange(), unbind()]),
    Case("unbind a missing queue", [exchange(), unbind()]),
    Case("unbind from a missing exchange", [declare(), unbind()]),
    Case("unbind from the default exchange", [declare(), unbind(exchange="")], DEFAULT_EXCHANGE),
    Case("unbind the last queue of none", [exchange(), unbind("", "e", "k")], NONE_DECLARED),
    Case("headers that all count", [declare(), exchange("e", "headers"), bind(arguments={"a": 1})]),
    Case("purge", [declare(), purge()]),
    Case("purge a missing queue", [purge()], NO_QUEUE),
    Case("purge the last queue", [declare(), purge("")]),
    Case("purge the last queue of none", [purge("")], NONE_DECLARED),
    Case("purge the last queue, which is gone", [declare(), delete(), purge("")], NO_QUEUE),
    Case("delete", [declare(), delete(), declare(durable=True)]),
    Case("delete a missing queue", [delete()]),
    Case("delete the last queue", [declare(), delete("")]),
    Case("delete the last queue of none", [delete("")], NONE_DECLARED),
    Case("delete if empty", [declare(), delete(if_empty=True)]),
    Case(
        "delete if empty, and it is not",
        [declare(), publish(), delete(if_empty=True)],
        Refusal(406, "queue 'q' in vhost '/' not empty"),
    ),
    Case("delete if unused", [declare(), delete(if_unused=True)]),
    Case(
        "delete if unused, and it is used",
        [declare(), consume(), delete(if_unused=True)],
        Refusal(406, "queue 'q' in vhost '/' in use"),
    ),
    Case(
        "delete if unused and empty, and it is neither",
        [declare(), publish(), consume(), delete(if_unused=True, if_empty=True)],
        Refusal(406, "queue 'q' in vhost '/' in use"),
    ),
]

_E = "exchange 'e'"
EXCHANGES = [
    *(
        Case(f"a {kind} exchange", [exchange(exchange_type=kind)] * 2)
        for kind in ("direct", "fanout", "topic", "headers")
    ),
    Case("another type", [exchange(), exchange(exchange_type="fanout")], differs("type", "'fanout'", "'direct'", _E)),
    Case("a durable one now", [exchange(), exchange(durable=True)], differs("durable", "'true'", "'false'", _E)),
    Case("not a durable one", [exchange(durable=True), exchange()], differs("durable", "'false'", "'true'", _E)),
    Case(
        "an auto-delete exchange now",
        [exchange(), exchange(auto_delete=True)],
        differs("auto_delete", "'true'", "'false'", _E),
    ),
    Case("internal now", [exchange(), exchange(internal=True)], differs("internal", "'true'", "'false'", _E)),
    Case(
        "the type counts first",
        [exchange(), exchange(exchange_type="fanout", durable=True)],
        differs("type", "'fanout'", "'direct'", _E),
    ),
    Case("an alternate exchange", [exchange(arguments={"alternate-exchange": "a"})] * 2),
    Case("the default exchange as alternate", [exchange(arguments={"alternate-exchange": ""})]),
    Case(
        "another alternate exchange",
        [exchange(arguments={"alternate-exchange": "a"}), exchange(arguments={"alternate-exchange": "b"})],
        differs("alternate-exchange", "'b'", "'a'", _E),
    ),
    Case(
        "a new alternate exchange",
        [exchange(), exchange(arguments={"alternate-exchange": "b"})],
        differs("alternate-exchange", "the value 'b' of type 'longstr'", "none", _E),
    ),
    Case(
        "no alternate exchange",
        [exchange(arguments={"alternate-exchange": "a"}), exchange()],
        differs("alternate-exchange", "none", "the value 'a' of type 'longstr'", _E),
    ),
    Case(
        "an alternate exchange that is a number",
        [exchange(arguments={"alternate-exchange": 1})],
        Refusal(406, "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'e' in vhost '/'"),
    ),
    Case("other notes", [exchange(arguments={"x": 1}), exchange(arguments={"x": 2})]),
    Case("a missing exchange, passively", [exchange(passive=True)], NO_EXCHANGE),
    Case("an exchange, passively", [exchange(), exchange(passive=True, exchange_type="no such")]),
    Case("the default exchange", [exchange("", durable=True)], DEFAULT_EXCHANGE),
    Case("the default exchange, passively", [exchange("", passive=True)], DEFAULT_EXCHANGE),
    Case("a predeclared exchange, passively", [exchange("amq.topic", "topic", passive=True)]),
    Case("a predeclared exchange alike", [exchange("amq.topic", "topic", durable=True)]),
    Case(
        "a predeclared exchange otherwise",
        [exchange("amq.topic", "topic")],
        differs("durable", "'false'", "'true'", "exchange 'amq.topic'"),
    ),
    Case(
        "an exchange of a reserved name",
        [exchange("amq.mine")],
        Refusal(403, "exchange name 'amq.mine' contains reserved prefix 'amq.*'"),
    ),
    Case(
        "an exchange of a reserved name, passively",
        [exchange("amq.mine", passive=True)],
        Refusal(404, "no exchange 'amq.mine' in vhost '/'"),
    ),
    Case("delete an exchange", [exchange(), drop(), exchange(exchange_type="fanout")]),
    Case("delete a missing exchange", [drop()]),
    Case("delete the default exchange", [drop("")], DEFAULT_EXCHANGE),
    Case(
        "delete a predeclared exchange",
        [drop("amq.direct")],
        Refusal(403, "deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
    ),
    Case("delete an unused exchange", [exchange(), drop(if_unused=True)]),
    Case(
        "delete an exchange in use",
        [declare(), exchange(), bind(), drop(if_unused=True)],
        Refusal(406, "exchange 'e' in vhost '/' in use"),
    ),
    Case("delete a target that is no source", [exchange(), exchange("d"), link(), drop("d", if_unused=True)]),
    Case("from exchange to exchange", [exchange(), exchange("d"), link(), unlink()]),
    Case("from an exchange to itself", [exchange(), link("e", "e")]),
    Case("to an internal exchange", [exchange(), exchange("d", internal=True), link()]),
    Case("to a missing exchange", [exchange(), link()], NO_TARGET),
    Case("from a missing exchange", [exchange("d"), link()], NO_EXCHANGE),
    Case("from the default exchange", [exchange("d"), link(source="")], DEFAULT_EXCHANGE),
    Case("to the default exchange", [exchange(), link(destination="")], DEFAULT_EXCHANGE),
    Case("unbind an exchange from the default one", [exchange("d"), unlink(source="")], DEFAULT_EXCHANGE),
    Case("unbind exchanges that are not bound", [exchange(), exchange("d"), unlink()]),
    Case("unbind a missing exchange", [exchange(), unlink()]),
    Case(
        "an auto-delete exchange goes with its last binding",
        [declare(), exchange(auto_delete=True), bind(), unbind(), exchange(passive=True)],
        NO_EXCHANGE,
    ),
]

SEEN = [*QUEUES, *TYPES, *BINDINGS, *EXCHANGES]
"""As RabbitMQ 3.10 answers."""

OURS = [
    Case(
        "an unknown type of exchange",
        [exchange(exchange_type="no such")],
        Refusal(406, "unknown exchange type 'no such'"),
    ),
    Case("delivery limit of a classic queue", [durable(x_delivery_limit=3)]),
    Case("no delivery limit", [durable(x_delivery_limit=-1), durable()]),
    Case(
        "a delivery limit that is a text",
        [durable(x_delivery_limit="3")],
        invalid("x-delivery-limit", '"expected integer, got longstr"'),
    ),
    Case(
        "a delayed exchange of no type",
        [exchange(exchange_type="x-delayed-message")],
        Refusal(406, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
    ),
    Case(
        "a delayed exchange",
        [exchange(exchange_type="x-delayed-message", arguments={"x-delayed-type": "topic"})] * 2,
    ),
    Case(
        "a delayed exchange of another type",
        [
            exchange(exchange_type="x-delayed-message", arguments={"x-delayed-type": "topic"}),
            exchange(exchange_type="x-delayed-message", arguments={"x-delayed-type": "direct"}),
        ],
        differs("x-delayed-type", "'direct'", "'topic'", _E),
    ),
    Case("a consistent hash exchange", [declare(), exchange(exchange_type="x-consistent-hash"), bind(routing_key="3")]),
    Case("unbind another's", [declare(exclusive=True).elsewhere(), exchange(), unbind()], LOCKED),
    Case("x-overflow of the usual kind", [durable(), durable(x_overflow="drop-head")]),
    Case("x-consumer-timeout", [durable(x_consumer_timeout=60000)] * 2),
    Case(
        "another x-consumer-timeout",
        [durable(x_consumer_timeout=60000), durable()],
        differs("x-consumer-timeout", "none", "the value '60000' of type 'signedint'"),
    ),
]
"""Where RabbitMQ 4 answers otherwise than 3.10, or a queue here can do more."""
