// A program that closes its connection while publishes of its channels are still on their way: amqplib sends those behind
// connection.close. Prints what it saw as one line of JSON. Called by test_amqplib.py with: address, name of a queue.
const amqp = require("amqplib");

const [url, queue] = process.argv.slice(2);

async function main() {
  const errors = [];
  const connection = await amqp.connect(url);
  connection.on("error", (error) => errors.push(error.message));
  const channels = [await connection.createChannel(), await connection.createChannel()];
  await channels[0].assertQueue(queue, { exclusive: true });
  for (let n = 0; n < 200; n++) {
    for (const channel of channels) channel.sendToQueue(queue, Buffer.alloc(60000, "x"));
  }
  await connection.close();
  console.log(JSON.stringify({ closed: true, errors }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
