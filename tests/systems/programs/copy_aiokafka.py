import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

address, source, target, group = sys.argv[1:5]


async def main():
    settings = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 6000,
    }
    async with (
        AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True) as producer,
        AIOKafkaConsumer(source, bootstrap_servers=address, **settings) as consumer,
    ):
        async for record in consumer:
            await producer.send_and_wait(target, record.value, record.key)
            await consumer.commit()


asyncio.run(main())
