// Logs in with amqplib, once for each attempt of a JSON array on standard input, and prints what became of each.
// An attempt: {url, user, password, external, ca, certificate, key}; with `user` the login is beside the address.
const fs = require("fs");
const amqp = require("amqplib");
const { plain, amqplain, external } = amqp.credentials;

async function attempt(given) {
  const options = {};
  if (given.user !== undefined) {
    options.credentials = (given.mechanism === "AMQPLAIN" ? amqplain : plain)(given.user, given.password);
  }
  if (given.external) options.credentials = external();
  for (const [field, option] of [["ca", "ca"], ["certificate", "cert"], ["key", "key"]]) {
    if (given[field]) options[option] = fs.readFileSync(given[field]);
  }
  let connection;
  try {
    connection = await amqp.connect(given.url, options);
  } catch (error) {
    return error.message;
  }
  const channel = await connection.createConfirmChannel();
  const { queue } = await channel.assertQueue("", { exclusive: true });
  channel.sendToQueue(queue, Buffer.from("hello"));
  await channel.waitForConfirms();
  const message = await channel.get(queue, { noAck: true });
  await connection.close();
  return message.content.toString();
}

async function main() {
  const said = [];
  for (const given of JSON.parse(fs.readFileSync(0))) said.push(await attempt(given));
  console.log(JSON.stringify(said));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
