use rskafka::client::partition::{Compression, UnknownTopicHandling};
use rskafka::client::ClientBuilder;
use rskafka::record::Record;
use std::{env, time::Duration};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = env::args().collect();
    let client = ClientBuilder::new(vec![args[1].clone()]).build().await.unwrap();
    let mut tasks = Vec::new();
    for partition in 0..2 {
        let from = client.partition_client(&args[2], partition, UnknownTopicHandling::Retry).await.unwrap();
        let to = client.partition_client(&args[3], partition, UnknownTopicHandling::Retry).await.unwrap();
        tasks.push(async move {
            let mut offset = 0;
            loop {
                let (records, _) = from.fetch_records(offset, 1..1_000_000, 100).await.unwrap();
                for r in records {
                    offset = r.offset + 1;
                    let copy = Record { timestamp: r.record.timestamp, headers: Default::default(), ..r.record };
                    to.produce(vec![copy], Compression::default()).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
    futures::future::join_all(tasks).await;
}
