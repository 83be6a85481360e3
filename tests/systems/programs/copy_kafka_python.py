import sys

from kafka import KafkaConsumer, KafkaProducer

address, source, target, group = sys.argv[1:5]
producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
consumer = KafkaConsumer(
    source,
    bootstrap_servers=address,
    group_id=group,
    session_timeout_ms=6000,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
)
for record in consumer:
    producer.send(target, record.value, record.key).get(30)
    consumer.commit()
