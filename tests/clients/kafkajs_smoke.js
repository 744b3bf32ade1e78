// What an ordinary kafkajs program does, in one go; prints what it saw as one line of JSON.
// Called by test_kafkajs.py with: address, topic, group, transactional id.
const { Kafka, logLevel, CompressionTypes, Partitioners } = require("kafkajs");

const [address, topic, group, transactionalId] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [address], logLevel: logLevel.ERROR, retry: { retries: 3 } });

async function main() {
  const seen = {};
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions: 2 }] });
  seen.again = await admin.createTopics({ topics: [{ topic, numPartitions: 2 }] });
  seen.controller = (await admin.describeCluster()).controller !== undefined;

  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, idempotent: true });
  await producer.connect();
  await producer.send({
    topic,
    compression: CompressionTypes.GZIP,
    messages: [0, 1, 2, 3].map((n) => ({ value: `plain-${n}`, partition: n % 2, headers: { n: String(n) } })),
  });
  const transactional = kafka.producer({
    createPartitioner: Partitioners.DefaultPartitioner, transactionalId, idempotent: true, maxInFlightRequests: 1,
  });
  await transactional.connect();
  for (const word of ["kept", "dropped"]) {
    const transaction = await transactional.transaction();
    await transaction.send({ topic, messages: [{ value: word, partition: 0 }] });
    await (word === "kept" ? transaction.commit() : transaction.abort());
  }

  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500, maxWaitTimeInMs: 100 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  seen.messages = [];
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${JSON.stringify(seen.messages)} came`)), 25000).unref();
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        seen.messages.push(`${partition} ${message.value} ${message.headers.n || ""}`.trim());
        if (seen.messages.length === 5) resolve();
      },
    }).catch(reject);
  });
  await consumer.commitOffsets([{ topic, partition: 0, offset: "3" }]);
  await consumer.disconnect();
  seen.offsets = (await admin.fetchOffsets({ groupId: group, topics: [topic] }))[0].partitions
    .filter((p) => p.partition === 0).map((p) => p.offset);
  seen.ends = (await admin.fetchTopicOffsets(topic)).map((p) => [p.partition, p.low]).sort();
  await admin.deleteGroups([group]);
  await admin.deleteTopics({ topics: [topic] });
  for (const client of [producer, transactional, admin]) await client.disconnect();
  console.log(JSON.stringify(seen));
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
