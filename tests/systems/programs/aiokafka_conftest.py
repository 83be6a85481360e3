# Added to the end of aiokafka's conftest.py: fixtures of a broker that runs already replace those of Docker.
import os
import types

import pytest


@pytest.fixture(scope="session")
def kafka_image():
    return "kafka:2_3.9.0"


@pytest.fixture(scope="session")
def kafka_server():
    host, port = os.environ["ADDRESS"].split(":")
    return types.SimpleNamespace(host=host, port=int(port), hosts=[f"{host}:{port}"])


@pytest.fixture(scope="class")
def setup_test_class(request, loop, kafka_server):
    request.cls.loop = loop
    request.cls.kafka_host, request.cls.kafka_port = kafka_server.host, kafka_server.port
    request.cls.hosts, request.cls.kafka_version = kafka_server.hosts, "3.9.0"
