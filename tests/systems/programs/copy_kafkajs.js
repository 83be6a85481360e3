const { Kafka } = require("kafkajs");
const [address, source, target, group] = process.argv.slice(2);

async function main() {
  const kafka = new Kafka({ brokers: [address] });
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500 });
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topic: source, fromBeginning: true });
  await consumer.run({
    eachMessage: async ({ message: { key, value } }) => {
      await producer.send({ topic: target, messages: [{ key, value }] });
    },
  });
}
main().catch((error) => { console.error(error); process.exit(1); });
