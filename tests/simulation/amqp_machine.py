"""AMQP clients of a broker on a simulated disk: the protocol's own session, without a socket, and what it promised
them.

Every message has a number. A client remembers what was confirmed, what it acknowledged, and what it did in
transactions; `check` compares that with what the queues hold after the next start.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from pamqp import commands
from pamqp import frame as frames
from pamqp.base import Frame

from tests.protocols.amqp.kit import HEADER, method, publish
from tests.simulation.promises import expect
from tests.support.entrances import entrance_of
from waystation.broker.broker import Broker
from waystation.protocols.amqp.room import Room
from waystation.protocols.amqp.session import AmqpSession

QUEUES = ("one", "two", "three")
FANOUT = "everywhere"
PREFETCH = 10
ROOM_BYTES = 64 * 1024 * 1024


class SimConnection:
    """A client's end of a session: what `Outside` is to the session, and frames to the client."""

    peer = ("127.0.0.1", 1)
    host = ("127.0.0.1", 5672)
    congested = False
    full = False
    others_wait = False

    def __init__(self, broker: Broker, name: str) -> None:
        self._incoming: asyncio.Queue[tuple[int, object]] = asyncio.Queue()
        self._flushing = False
        room = Room(lambda: ROOM_BYTES, broker.max_queue_message_bytes)
        self.session = AmqpSession(broker, entrance_of(broker), self, name, [], room)

    # -- what the session asks ----------------------------------------------------------------------------------------

    def asked(self) -> None:
        pass

    def to_flush(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self.write_out()
        self.session.fed()

    def write_out(self) -> None:
        data = b"".join(self.session.out)
        self.session.written()
        while data:
            size, channel, value = frames.unmarshal(data)
            self._incoming.put_nowait((channel, value))
            data = data[size:]

    def to_work(self) -> None:
        asyncio.get_running_loop().call_soon(self.session.work)

    def to_get(self) -> None:
        asyncio.get_running_loop().call_soon(self.session.get_one)

    def over(self) -> None:
        self._flush()

    # -- what the client does -----------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.session.receive(data)

    def say(self, value: Frame, channel: int = 1) -> None:
        self.send(method(value, channel))

    async def next(self) -> object:
        return (await self._incoming.get())[1]

    async def ask(self, value: Frame, channel: int = 1) -> object:
        self.say(value, channel)
        answer = await self.next()
        expect(
            not isinstance(answer, commands.Channel.Close | commands.Connection.Close),
            f"{value.name} was refused: {dict(answer) if isinstance(answer, Frame) else answer}",
        )
        return answer

    async def open(self) -> None:
        self.send(HEADER)
        await self.next()
        await self.ask(commands.Connection.StartOk({}, "PLAIN", "\x00guest\x00guest", "en_US"), 0)
        self.say(commands.Connection.TuneOk(0, 131_072, 0), 0)
        await self.ask(commands.Connection.Open("/"), 0)
        await self.ask(commands.Channel.Open())


class AmqpClients:
    """What all clients of all lives remember."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = 0
        self.confirmed: dict[str, set[int]] = defaultdict(set)  # the broker said that it has them
        self.sent: dict[str, set[int]] = defaultdict(set)  # it may have them
        self.acked: dict[str, set[int]] = defaultdict(set)  # they may be gone
        self.gone: dict[str, set[int]] = defaultdict(set)  # they must not come again
        self.together: list[tuple[list[tuple[str, int]], list[tuple[str, int]]]] = []
        """Transactions whose end is not known: what they put and what they took, all of it or nothing."""

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def check(self, broker: Broker) -> None:
        """Compares everything with what is in the queues, of a broker that has just started."""
        held = {
            queue: {int(peeked.delivered.message.payload) for peeked in broker.queues.peek(queue, 100_000)}
            for queue in QUEUES
            if queue in broker.queues
        }
        for put, taken in self.together:
            # What was consumed since was there: only a commit shows it to anybody.
            there = {number in held.get(queue, ()) or number in self.acked[queue] for queue, number in put}
            # What was taken but never confirmed may have been lost by itself.
            left = {
                number in held.get(queue, ())
                for queue, number in taken
                if number in held.get(queue, ()) or number in self.confirmed[queue]
            }
            expect(len(there) <= 1 and len(left) <= 1, f"half of a transaction happened: {put} {taken}")
            if there and left:
                expect(there != left, f"a transaction put {put} and did not take {taken}, or the other way round")
            for queue, number in put:
                known = self.confirmed if True in there else self.gone
                known[queue].add(number)
            for queue, number in taken:
                if True in there:
                    self.gone[queue].add(number)
        self.together.clear()
        for queue, numbers in held.items():
            missing = self.confirmed[queue] - self.acked[queue] - self.gone[queue] - numbers
            expect(not missing, f"{queue}: confirmed and lost: {sorted(missing)[:10]}")
            back = numbers & self.gone[queue]
            expect(not back, f"{queue}: done, and there again: {sorted(back)[:10]}")
            strange = numbers - self.sent[queue]
            expect(not strange, f"{queue}: never sent: {sorted(strange)[:10]}")
            # What was acknowledged and is there again was not kept; what is not there stays away.
            self.gone[queue] |= self.acked[queue] - numbers
            self.acked[queue].clear()

    def stopped(self) -> None:
        """The broker has ended as it should: what was acknowledged is done."""
        for queue in QUEUES:
            self.gone[queue] |= self.acked[queue]


class AmqpMachine:
    """One life of the broker, and clients at work."""

    def __init__(self, broker: Broker, clients: AmqpClients, life: int) -> None:
        self.broker = broker
        self.clients = clients
        self.rng = clients.rng
        self._life = life
        self._connections = 0

    async def connect(self) -> SimConnection:
        self._connections += 1
        connection = SimConnection(self.broker, f"life {self._life}, client {self._connections}")
        await connection.open()
        return connection

    async def start(self) -> None:
        self.clients.check(self.broker)
        connection = await self.connect()
        for queue in QUEUES:
            await connection.ask(commands.Queue.Declare(0, queue, False, True))
        await connection.ask(commands.Exchange.Declare(0, FANOUT, "fanout", False, True))
        for queue in QUEUES:
            await connection.ask(commands.Queue.Bind(0, queue, FANOUT))
        connection.session.ended(politely=True)

    async def work(self, seconds: float) -> None:
        until = self.broker.world.clock.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(self.publish(until))
            for queue in QUEUES:
                tasks.create_task(self.consume(queue, until))
            tasks.create_task(self.move(until))

    def _over(self, until: float) -> bool:
        return self.broker.world.clock.monotonic() >= until

    async def publish(self, until: float) -> None:
        """Bursts with confirms, to one queue or through the exchange to all."""
        clients, rng = self.clients, self.rng
        connection = await self.connect()
        await connection.ask(commands.Confirm.Select())
        waiting: dict[int, tuple[list[str], int, dict[str, set[int]]]] = {}
        sequence = 0
        while not self._over(until):
            burst = b""
            done = {queue: set(clients.acked[queue]) for queue in QUEUES}  # and written before what follows
            for _ in range(rng.randint(1, 10)):
                sequence += 1
                number = clients.number()
                queue = rng.choice(QUEUES)
                everywhere = rng.random() < 0.3
                targets = list(QUEUES) if everywhere else [queue]
                burst += publish(1, b"%d" % number, "" if everywhere else queue, FANOUT if everywhere else "")
                waiting[sequence] = targets, number, done
                for target in targets:
                    clients.sent[target].add(number)
            connection.send(burst)
            while waiting and rng.random() < 0.9:
                answer = await connection.next()
                expect(isinstance(answer, commands.Basic.Ack), f"a publish was answered by {answer}")
                tag: int = answer.delivery_tag  # type: ignore[attr-defined]
                for confirmed in [each for each in waiting if each <= tag]:
                    targets, number, before = waiting.pop(confirmed)
                    for target in targets:
                        clients.confirmed[target].add(number)
                        clients.gone[target] |= before[target] & clients.acked[target]
            await asyncio.sleep(rng.choice((0.001, 0.01, 0.03)))
        connection.session.ended(politely=rng.random() < 0.5)

    async def consume(self, queue: str, until: float) -> None:
        """Takes and acknowledges, one by one or several at once; gives some back."""
        clients, rng = self.clients, self.rng
        connection = await self.connect()
        await connection.ask(commands.Basic.Qos(0, PREFETCH))
        await connection.ask(commands.Basic.Consume(0, queue))
        held: dict[int, int] = {}
        while not self._over(until):
            try:
                deliver = await asyncio.wait_for(connection.next(), 0.05)
            except TimeoutError:
                continue
            await connection.next()
            body = await connection.next()
            tag: int = deliver.delivery_tag  # type: ignore[attr-defined]
            number = int(body.value)  # type: ignore[attr-defined]
            expect(number not in clients.gone[queue], f"{queue}: {number} was done and is delivered")
            held[tag] = number
            clients.acked[queue].discard(number)
            if len(held) < rng.randint(1, PREFETCH):
                continue
            if rng.random() < 0.2:
                connection.say(commands.Basic.Nack(tag, True, True))
            else:
                clients.acked[queue].update(held.values())
                connection.say(commands.Basic.Ack(tag, True))
            held.clear()
        connection.session.ended(politely=rng.random() < 0.5)

    async def move(self, until: float) -> None:
        """Takes a message of one queue and puts it to another, in transactions."""
        clients, rng = self.clients, self.rng
        connection = await self.connect()
        await connection.ask(commands.Tx.Select())
        while not self._over(until):
            await asyncio.sleep(rng.choice((0.001, 0.01)))
            source = rng.choice(QUEUES)
            connection.say(commands.Basic.Get(0, source))
            got = await connection.next()
            taken: list[tuple[str, int]] = []
            if isinstance(got, commands.Basic.GetOk):
                await connection.next()
                body = await connection.next()
                number = int(body.value)  # type: ignore[attr-defined]
                taken.append((source, number))
                clients.acked[source].discard(number)
                connection.say(commands.Basic.Ack(got.delivery_tag or 0, False))
            put = [(queue, clients.number()) for queue in rng.sample(QUEUES, 2)]
            for queue, number in put:
                clients.sent[queue].add(number)
                connection.send(publish(1, b"%d" % number, queue))
            if rng.random() < 0.2:
                await connection.ask(commands.Tx.Rollback())
                for queue, number in put:
                    clients.gone[queue].add(number)
                await connection.ask(commands.Basic.Recover(True))
                continue
            ending = (put, taken)
            clients.together.append(ending)
            await connection.ask(commands.Tx.Commit())
            clients.together.remove(ending)
            for queue, number in put:
                clients.confirmed[queue].add(number)
            for queue, number in taken:
                clients.gone[queue].add(number)
        connection.session.ended(politely=rng.random() < 0.5)
