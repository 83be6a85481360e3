"""One script of requests to a real broker and to the server: the answers, field by field.

`DIFFERENCES` lists each difference that stays, with its reason. A difference that is not listed fails, and so
does a listed one that no longer occurs. `make differential-server` sends every version.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import confluent_kafka.admin
import pyarrow.compute  # noqa: F401  the server's first pattern imports it: seconds
import pytest

import lastword
from lastword.protocol.messages import ApiVersionsRequest
from lastword.protocol.schemas import APIS
from lastword.server import security
from lastword.testing.unsynced import UNSYNCED
from tests.kafka.conftest import LOGIN, generator, secured_broker
from tests.kafka.sasl_script import HASHES, SASL_SCRIPT, USERS, WITHOUT_PASSWORDS
from tests.kafka.server_script import SCRIPT, Difference, Side, compare
from tests.server.client import Client
from tests.support.exhaustive import stride
from tests.support.kafka import Broker, Tools

EVERY = stride(100)
"""In the test command: the first and the last version of each API."""

OWN_TEXT = r"(Create|Alter|IncrementalAlter|Describe|Find|Delete)\w+/.*error_message"
DIFFERENCES = [
    # Metadata
    (r"Metadata/created/.*", "a broker answers before the topic is there; the client repeats the request"),
    (
        r"Metadata/(no name|by id|unknown id|name and id)/(brokers|cluster_id|controller_id|topics).*",
        "a broker refuses ids in versions 10 and 11; they are served, as in version 12",
    ),
    (r"Metadata/no name/error_code", "an accident of the broker: UNKNOWN_SERVER_ERROR for no name and no id"),
    (r"Metadata/negative count/answer", "a length below -1 is malformed; a broker takes it for -1"),
    # topics and settings
    (OWN_TEXT, "some sentences are lastword's own: they name the limits, or what is not served"),
    (
        r"(CreateTopics|DescribeConfigs)/.*\[cleanup\.policy\]\.(config_source|synonyms.*)",
        "`delete` is saved with a topic: without a policy, a log of lastword keeps everything",
    ),
    (
        r"(CreateTopics|DescribeConfigs)/.*min\.insync\.replicas.*",
        "a cluster of KRaft sets it itself, for eligible leader replicas, which one node has not",
    ),
    (r"CreateTopics/checked only/.*\.topic_id", "a broker invents an id for a topic that it only checks"),
    (r"CreateTopics/segment\.bytes=1/.*", "segments may be smaller than a broker's 1 MiB"),
    (r"DescribeConfigs/.*\.documentation", "the documentation says what a setting does here"),
    (r"DescribeConfigs/broker/.*\.read_only", "settings of the broker are fixed while it runs"),
    (
        r"DescribeConfigs/(broker|topic)/.*\.synonyms\[log\.(roll|roll\.jitter|retention)\.hours\]"
        r"|DescribeConfigs/(broker|topic)/.*\.synonyms\[log\.flush\.scheduler\.interval\.ms\]",
        "a broker leaves out the default of a coarser unit while the finer one is not set",
    ),
    (
        r"DescribeConfigs/broker/.*\[(auto\.create\.topics\.enable|broker\.heartbeat\.interval\.ms"
        r"|broker\.session\.timeout\.ms|controlled\.shutdown\.enable|controller\..*|default\.replication\.factor|listeners|log\.dirs"
        r"|metadata\.log\.dir|advertised\.listeners"
        r"|connection\.failed\.authentication\.delay\.ms|inter\.broker\.listener\.name|listener\.name\.sasl\..*"
        r"|listener\.security\.protocol\.map|log\.cleaner\.enable|group\.consumer\.assignment\.interval\.ms|share\.coordinator\..*)\].*",
        "the settings of the broker that the test starts",
    ),
    (
        r"DescribeConfigs/broker/.*\[(group\.coordinator\.rebalance\.protocols|max\.connections"
        r"|queued\.max\.request\.bytes)\]\..*",
        "a limit of this server",
    ),
    (r"DescribeConfigs/all brokers/.*", "there are no settings for all brokers"),
    # Produce
    (r"Produce/.*\.error_message", "a broker sends no text with most of these errors"),
    (r"Produce/.*\.log_start_offset", "a refused batch has no log start; clients do not read it"),
    (
        r"Produce/.*odd\]\.partition_responses\[0\]\.base_offset",
        "behind batches that only one of both appends",
    ),
    (r"Produce/twice/.*", "a partition that is named twice gets two batches; a broker drops the first"),
    (
        r"Produce/garbage behind/.*",
        "bytes behind the batch are refused; a broker drops them, so that it acknowledges less than it got",
    ),
    (
        r"Produce/(codec \d, no data|count and offset 2)/.*",
        "records are not decoded, except for compacted topics: that is the promise of cost",
    ),
    (
        r"Produce/codec [57]/.*",
        "an unknown codec has its own error; a broker fails with UNKNOWN_SERVER_ERROR",
    ),
    (r"Produce/no epoch/.*", "a producer id without an epoch is refused; no client sends it"),
    (
        r"Produce/(unknown producer, .*|sequence: .*|newer epoch)/.*\.log_append_time_ms",
        "a broker answers a repeated batch with its time as the time of the append",
    ),
    (
        r"Produce/(future|stamped, own append time|log append time, no time)/.*\.record_errors.*",
        "the records of a batch with a wrong time are not read",
    ),
    # Fetch and offsets
    (r"Fetch/.*\.aborted_transactions", "an error has no list of aborted transactions"),
    (
        r"Fetch/several/.*\.records",
        "an answer ends at a whole batch; a broker cuts the last one, and the client drops it",
    ),
    (r"Fetch/packed/.*\.records", "another gzip, with other bytes"),
    (r"Fetch/isolation 7/.*", "an unknown isolation level reads everything; a broker fails"),
    (r"Fetch/negative bytes( in all)?/.*", "a negative limit is a limit of 0; a broker fails"),
    (
        r"Fetch/fetched epoch 5/.*",
        "the epoch of a follower's last record is not compared: there are no followers",
    ),
    (r"Fetch/as replica state 7/.*\.current_leader\..*", "there is no other leader to name"),
    (r"Fetch/session, epoch 2/.*", "the partitions of a topic are together in the answer"),
    (r"OffsetForLeaderEpoch/epoch -5, .*", "every negative epoch is unknown; a broker returns an end for -5"),
    # cluster and producers
    (
        r"ApiVersions/.*/(api_keys|supported_features|finalized_features).*",
        "the APIs and features that are served",
    ),
    (
        r"ApiVersions/((no|wrong) software|longer)/error_code",
        "a client is served without a valid name and version of its software",
    ),
    (r"ApiVersions/unknown version/answer", "answered in version 0, with or without a body"),
    (r"DescribeProducers/users/.*", "the producers of the odd batches"),
    (
        r"DescribeQuorum/one/.*\.(high_watermark|log_end_offset|leader_epoch)",
        "there is no log of the cluster's metadata",
    ),
    (r"DescribeProducers/unknown/.*\.error_message", "a broker sends no text for a missing partition"),
    (
        r"DescribeTransactions/ongoing/transaction_states\[(nobody)?\]\.producer_id"
        r"|InitProducerId/of a member/producer_id",
        "0 stands for no producer; with a broker, it is also the id of the first producer",
    ),
    (r"ConsumerGroupHeartbeat/a wrong pattern/error_message", "the sentence of another library of RE2"),
    (r"DeleteGroups/several/.*", "a group that is named twice is answered twice"),
    (
        r"CreatePartitions/of a coordinator/.*",
        "its partitions say where each group is: a broker loses groups",
    ),
    (
        r"DescribeClientQuotas/(named|wrong .*|empty type|no name|a name too many|twice)/.*",
        "a filter is not checked: there are no quotas",
    ),
    (r"AlterClientQuotas/.*", "there are no quotas: a change is refused, also one that is only tried"),
    (
        r"WriteTxnMarkers/no (producer id|epoch|producer)/.*error_code",
        "a marker without a producer or an epoch is refused as INVALID_REQUEST: a broker fails with an error "
        "of its own, UNKNOWN_SERVER_ERROR",
    ),
    # SASL
    (
        r"SaslAuthenticate/PLAIN, (empty password|no message|zeros|garbage|for another user|no user"
        r"|four parts|two parts), message 1/error_message"
        r"|SaslAuthenticate/SCRAM-.*, first of another user, message 1/error_message",
        "one sentence for every refusal: it does not say what was wrong",
    ),
    (
        r"SaslAuthenticate/SCRAM-.*, (unknown user|without headers, unknown|first no user), message \d/.*",
        "an unknown user gets a salt, as a known one does, and is refused at the end of the exchange: the "
        "answers do not say which users exist",
    ),
    (
        r"SaslAuthenticate/SCRAM-.*, first without a binding, message 1/.*",
        "the flag `y` of RFC 5802 (a client that could bind a channel) is allowed; a broker refuses it",
    ),
    (
        r"SaslAuthenticate/SCRAM-.*, first mandatory extension, message 1/.*",
        "RFC 5802: a mandatory extension that is not known must be refused; a broker ignores it",
    ),
    (
        r"(SaslAuthenticate|DescribeCluster)/(behind )?SCRAM-.*, final extension(, message 2)?/.*",
        "RFC 5802: the proof is for the message with its extensions; a broker leaves them out of it",
    ),
    (
        r"SaslAuthenticate/SCRAM-.*, final (empty|short) proof, message 2/answer",
        "refused as a wrong proof is; a broker fails and closes the connection without an answer",
    ),
    (
        r"DescribeCluster/behind SCRAM-.*, first .*/answer"
        r"|SaslHandshake/(handshake twice|behind longer)/answer"
        r"|(ApiVersions|Metadata)/.* behind a handshake/answer",
        "another request during the exchange closes the connection; a broker answers with ILLEGAL_SASL_STATE "
        "before it closes",
    ),
    (r"ApiVersions/ApiVersions twice/answer", "answered; a broker closes the connection"),
]
"""(pattern of api/label/field, reason)"""
SLOW_DIFFERENCES = [
    (r"Produce/no records/.*", "refused; a broker gives no answer at all"),
    (r"AlterConfigs/topic twice/answer", "refused; a broker gives no answer at all"),
    (r"IncrementalAlterConfigs/operation 7/.*", "refused; a broker's controller fails"),
]
"""Those of the requests that `make differential-server` sends."""


def add_users(broker: Broker) -> None:
    """Add the users to the broker, with both hashes of SCRAM."""
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    kinds = confluent_kafka.admin.ScramMechanism
    for name, password in USERS.items():
        for kind in (kinds.SCRAM_SHA_256, kinds.SCRAM_SHA_512):
            info = confluent_kafka.admin.ScramCredentialInfo(kind, security.ITERATIONS)
            user = confluent_kafka.admin.UserScramCredentialUpsertion(name, info, password.encode())
            admin.alter_user_scram_credentials([user])[name].result(10)


@pytest.fixture(scope="module")
def differences(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> list[Difference]:
    root = tmp_path_factory.mktemp("differential")
    (root / "lastword").mkdir()
    (root / "lastword" / "lastword.toml").write_text(
        "[defaults]\nretention.ms = -1\n"
    )  # as the broker has it
    ours = {"files": UNSYNCED, "log_cleaner_enable": False}
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items() if name.isalpha())
    settings = {
        "auto.create.topics.enable": "true",
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.assignment.interval.ms": "0",
        "connection.failed.authentication.delay.ms": "10",
        "listener.name.sasl.sasl.enabled.mechanisms": ",".join(("PLAIN", *HASHES)),
        "listener.name.sasl.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required {users};",
    } | {
        f"listener.name.sasl.{name.lower()}.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;"
        for name in HASHES
    }
    broker, secured = secured_broker(tools, root / "kafka", "SASL_PLAINTEXT", settings)
    with (
        pytest.MonkeyPatch.context() as patch,
        broker,
        lastword.open(root / "lastword", "a", **ours) as logs,  # type: ignore[arg-type]
        lastword.serve(logs, "127.0.0.1:0") as server,
        closing(Side(server.bootstrap_servers)) as here,
        closing(Side(broker.bootstrap)) as there,
        lastword.open(root / "secured", "a", **ours) as private_logs,  # type: ignore[arg-type]
        lastword.serve(private_logs, "127.0.0.1:0", users=USERS) as private,
        closing(Side(private.bootstrap_servers)) as private_here,
        closing(Side(secured)) as private_there,
    ):
        patch.setattr(security, "DENIED_SECONDS", 0.01)
        add_users(broker)
        return [
            *compare(here, there, [*SCRIPT, *WITHOUT_PASSWORDS], EVERY),
            *compare(private_here, private_there, SASL_SCRIPT, EVERY),
        ]


def test_the_script_has_every_version_that_is_served(tmp_path: Path) -> None:
    """All pairs of API and version in the answer to ApiVersions."""
    scripted = {
        step.sent(version)
        for step in (*SCRIPT, *WITHOUT_PASSWORDS, *SASL_SCRIPT)
        for version in step.versions
    }
    with (
        lastword.open(tmp_path, "a") as logs,
        lastword.serve(logs, "127.0.0.1:0") as server,
        Client(server) as client,
    ):
        listed = client.ask(ApiVersionsRequest(), 3).api_keys
    served = {
        (api.api_key, version) for api in listed for version in range(api.min_version, api.max_version + 1)
    }
    missing = served - scripted
    assert len(served) > 200 and not [(APIS[key].name, version) for key, version in sorted(missing)]


def test_every_difference_is_listed(differences: list[Difference]) -> None:
    patterns = [re.compile(pattern) for pattern, _ in DIFFERENCES + SLOW_DIFFERENCES]
    unlisted = [d for d in differences if not any(pattern.fullmatch(d.place) for pattern in patterns)]
    assert not unlisted, f"{len(unlisted)}\n" + "\n".join(f"{d!s:.400}" for d in unlisted[:60])


def test_every_listed_difference_occurs(differences: list[Difference]) -> None:
    places = {difference.place for difference in differences}
    gone = [
        pattern for pattern, _ in DIFFERENCES if not any(re.fullmatch(pattern, place) for place in places)
    ]
    assert not gone


def test_the_table_of_settings_is_that_of_the_jars(tools: Tools) -> None:
    script = generator("make_configs.py")
    assert script["TARGET"].read_text(encoding="utf-8") == script["text"](tools.ask("configs"))
