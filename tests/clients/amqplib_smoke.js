// What ordinary amqplib programs do, in one go; prints what it saw as one line of JSON.
// Called by test_amqplib.py with: address, a prefix of names that nobody else uses.
const amqp = require("amqplib");

const [url, prefix] = process.argv.slice(2);

/** The next message of a queue, waited for. */
async function next(channel, queue, options = {}) {
  for (;;) {
    const message = await channel.get(queue, options);
    if (message) return message;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** The error that a call makes of its channel, as "code: first word". */
async function refused(connection, call) {
  const channel = await connection.createChannel();
  const error = new Promise((resolve) => channel.once("error", resolve));
  try {
    await call(channel);
  } catch (thrown) {
    // The channel's own error event says the same with a code.
  }
  const seen = await error;
  return `${seen.code}: ${/[A-Z]+_[A-Z]+/.exec(seen.message)?.[0] ?? seen.message}`;
}

async function work(connection, seen) {
  const channel = await connection.createConfirmChannel();
  const exchange = `${prefix}-x`;
  await channel.assertExchange(exchange, "topic", { durable: false, autoDelete: true });
  const { queue } = await channel.assertQueue("", { exclusive: true });
  seen.serverNamed = queue.startsWith("amq.gen-");
  await channel.bindQueue(queue, exchange, "a.#");
  for (let n = 0; n < 100; n++) {
    channel.publish(exchange, "a.b", Buffer.from(String(n)), { persistent: true, headers: { n, odd: n % 2 === 1 } });
  }
  await channel.waitForConfirms();
  await channel.prefetch(10);
  seen.bodies = await new Promise((resolve) => {
    const bodies = [];
    channel.consume(queue, (message) => {
      bodies.push(Number(message.content.toString()));
      if (message.properties.headers.odd !== (bodies.length % 2 === 0)) throw new Error("headers are wrong");
      channel.ack(message);
      if (bodies.length === 100) resolve(bodies);
    }, { consumerTag: "mine" });
  });
  await channel.cancel("mine");

  channel.sendToQueue(queue, Buffer.from("again"), { messageId: "m", correlationId: "c", type: "t", timestamp: 1700000000 });
  const first = await next(channel, queue);
  channel.nack(first, false, true);
  const second = await next(channel, queue);
  seen.redelivered = [first.fields.redelivered, second.fields.redelivered];
  seen.properties = [second.properties.messageId, second.properties.correlationId, second.properties.type, second.properties.timestamp];
  channel.reject(second, false);
  seen.purged = (await channel.purgeQueue(queue)).messageCount;
  seen.empty = await channel.get(queue);

  const returned = new Promise((resolve) => channel.once("return", resolve));
  channel.publish(exchange, "nobody", Buffer.from("lost"), { mandatory: true });
  seen.returned = (await returned).fields.replyCode;
  const large = Buffer.alloc(1000000, "z");
  channel.sendToQueue(queue, large);
  seen.large = (await next(channel, queue, { noAck: true })).content.equals(large);
  await channel.close();
}

async function limits(connection, seen) {
  const channel = await connection.createConfirmChannel();
  const dead = `${prefix}-dead`, full = `${prefix}-full`;
  await channel.assertQueue(dead, { exclusive: true });
  await channel.assertQueue(full, {
    exclusive: true, maxLength: 1, arguments: { "x-overflow": "reject-publish" }, messageTtl: 60000, maxPriority: 4,
    deadLetterExchange: "", deadLetterRoutingKey: dead,
  });
  const answer = (body, options) => new Promise((resolve) => {
    channel.sendToQueue(full, Buffer.from(body), options, (error) => resolve(error === null ? "ack" : "nack"));
  });
  seen.overflow = [await answer("one", {}), await answer("two", {})];
  channel.nack(await next(channel, full), false, false);
  const moved = await next(channel, dead, { noAck: true });
  const death = moved.properties.headers["x-death"][0];
  seen.death = [death.reason, death.count, death.queue === full, death["routing-keys"][0] === full, typeof death.time];
  const cancelled = new Promise((resolve) => channel.consume(dead, (message) => message === null && resolve(true)));
  await channel.checkQueue(dead);
  await channel.deleteQueue(dead);
  seen.cancelled = await cancelled;
  await channel.close();
}

async function reply(connection, seen) {
  const channel = await connection.createChannel();
  const queue = `${prefix}-rpc`;
  await channel.assertQueue(queue, { exclusive: true });
  await channel.consume(queue, (message) => {
    const { replyTo, correlationId } = message.properties;
    channel.sendToQueue(replyTo, Buffer.from(message.content.toString().toUpperCase()), { correlationId });
  }, { noAck: true });
  seen.reply = await new Promise((resolve) => {
    channel.consume("amq.rabbitmq.reply-to", (message) => resolve(message.content.toString()), { noAck: true }).then(() => {
      channel.sendToQueue(queue, Buffer.from("hello"), { replyTo: "amq.rabbitmq.reply-to", correlationId: "1" });
    });
  });
  await channel.close();
}

async function errors(connection, seen) {
  const exclusive = `${prefix}-own`;
  const other = await amqp.connect(url);
  const owner = await other.createChannel();
  await owner.assertQueue(exclusive, { exclusive: true });
  seen.errors = [
    await refused(connection, (channel) => channel.checkQueue(`${prefix}-missing`)),
    await refused(connection, (channel) => channel.assertQueue("amq.mine")),
    await refused(connection, (channel) => channel.checkQueue(exclusive)),
    await refused(connection, (channel) => channel.assertExchange("amq.direct", "fanout")),
  ];
  await other.close();
}

async function main() {
  const seen = {};
  const connection = await amqp.connect(url, { clientProperties: { connection_name: "smoke" } });
  for (const part of [work, limits, reply, errors]) await part(connection, seen);
  await connection.close();
  seen.wrongPassword = await amqp.connect(url.replace("guest:guest", "guest:wrong")).then(() => "let in", (error) => /ACCESS.REFUSED|403/i.test(error.message));
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
