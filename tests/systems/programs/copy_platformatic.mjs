import { Consumer, Producer, MessagesStreamFallbackModes, MessagesStreamModes } from "@platformatic/kafka";
const [address, source, target, group] = process.argv.slice(2);
Promise.withResolvers ??= function () {  // Node.js 20 has none
  let resolve, reject;
  const promise = new Promise((...both) => { [resolve, reject] = both; });
  return { promise, resolve, reject };
};
const common = { clientId: "systems", bootstrapBrokers: [address] };
const producer = new Producer(common);
const consumer = new Consumer({ ...common, groupId: group, sessionTimeout: 6000, rebalanceTimeout: 6000, heartbeatInterval: 500 });
const stream = await consumer.consume({
  topics: [source],
  autocommit: false,
  mode: MessagesStreamModes.COMMITTED,
  fallbackMode: MessagesStreamFallbackModes.EARLIEST,
});
for await (const message of stream) {
  await producer.send({ messages: [{ topic: target, key: message.key, value: message.value }], acks: -1 });
  await message.commit();
}
