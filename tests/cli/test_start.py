"""Check that a command starts fast: it imports no module that it does not need."""

import inspect
import json
import socket
import subprocess
import sys
import time

import pytest

from lastword.cli.command import Unconverted
from lastword.protocol import ClientConnection
from lastword.protocol.messages import ApiVersionsRequest, MetadataRequest

HEAVY = ("numpy", "numba", "llvmlite", "pyarrow", "pydantic", "pyspark")
# Run each command line in one process and print the modules that were imported after it.
PROBE = f"""
import json, sys
from lastword.cli.main import run
told = []
for arguments in json.loads(sys.argv[1]):
    code = run(arguments)
    told.append([arguments, code, [name for name in {HEAVY!r} if name in sys.modules]])
print(json.dumps(told), file=sys.stderr)
"""


def imported(commands, cwd, stdin=""):
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(commands)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stderr.splitlines()[-1])


def test_light_commands_import_nothing_heavy(tmp_path):
    commands = [
        ["--help"],
        ["create", "data", "users", "--set", "cleanup.policy=compact"],
        ["config", "data", "users"],
        ["config", "data", "users", "--set", "segment.bytes=1MiB"],
        ["append", "data", "users", "ada", "1", "--ack", "disk"],
        ["append", "data", "users"],
        ["read", "data", "users"],
        ["read", "data", "users", "--view", "newest"],
        ["dump", "data/users-0/00000000000000000000.log"],
        ["ls", "data"],
        ["ls", "data", "users"],
        ["restore", "data", "users", "users.jsonl"],
        ["verify", "data"],
    ]
    imports = imported(commands, tmp_path, '{"key": "a", "value": "b"}\n')
    *others, verify = [[arguments, 0, []] for arguments in commands]
    assert imports == [*others, [*verify[:2], ["numpy"]]]


def test_the_types_of_a_command_are_those_of_its_signature():
    """Typer's wrapper has no annotations from Python 3.14 on: each value was then converted by Pydantic."""

    class Given:
        name, required, callback, multiple, nargs = "directory", False, None, False, 1

        def process_value(self, context, value):
            raise AssertionError("converted")

    class Command:
        def get_params(self, context):
            return [Given()]

    class Probe(Unconverted, Command):
        pass

    def wrapper(**arguments):
        pass

    directory = inspect.Parameter("directory", inspect.Parameter.KEYWORD_ONLY, annotation=str | None)
    wrapper.__signature__ = inspect.Signature([directory])
    probe = Probe()
    probe.callback = wrapper
    (parameter,) = probe.get_params(None)
    assert parameter.process_value(None, "data") == "data"


SERVE = """
import json, os, signal, socket, struct, sys, threading, time
from lastword.cli.main import run

def ask(port, frames):
    while True:
        try:
            sock = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    for frame in frames:
        sock.sendall(bytes.fromhex(frame))
        (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        sock.recv(size, socket.MSG_WAITALL)
    from lastword.protocol import schemas
    print(json.dumps([sorted(sys.modules), sorted(schemas._schemas)]), file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=ask, args=(int(sys.argv[2]), sys.argv[3:])).start()
sys.exit(run(["serve", sys.argv[1], "--listen", "127.0.0.1:" + sys.argv[2], "--json"]))
"""
NEEDED_LATER = (
    "lastword.accounts",
    "lastword.cleaner.engine.report",
    "lastword.cleaner.policy.choose",
    "lastword.kernels",
    "lastword.objects.remote",
    "lastword.resolve",
    "lastword.retention",
    "lastword.server.security",
    "lastword.state",
    "lastword.tools",
    "numba",
    "numpy",
    "prometheus_client",
    "pyarrow",
    "pydantic",
    "rich",
    "tomlkit",
)


def test_serve_answers_metadata_before_it_loads_what_is_needed_later(tmp_path):
    """The start takes as long as its modules and the classes of messages: no clock is needed to bound it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    client = ClientConnection("probe")
    bodies = [
        (ApiVersionsRequest(client_software_name="probe", client_software_version="1"), 3),
        (MetadataRequest(topics=None), 9),
    ]
    frames = [b"".join(client.request(*body)).hex() for body in bodies]
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(tmp_path / "data"), port, *frames], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    modules, schemas = json.loads(done.stderr.splitlines()[-1])
    assert [name for name in NEEDED_LATER if name in modules] == []
    assert len([name for name in modules if name.startswith("lastword")]) <= 130
    answered = ["ApiVersionsRequest", "ApiVersionsResponse", "MetadataRequest", "MetadataResponse"]
    assert [name for name in schemas if not name.endswith("Header")] == answered


MODULES_OF_COMMANDS = ("analysis", "checks", "clean", "ls", "pull", "records", "serve", "topics", "warm")
# After each command line, print the modules of commands that were imported, and the commands that were built.
BUILT = f"""
import json, sys
from lastword.cli.main import command_tree, run
modules = {MODULES_OF_COMMANDS!r}
results = []
for arguments in json.loads(sys.argv[1]):
    run(arguments)
    imported = [name for name in modules if "lastword.cli." + name in sys.modules]
    results.append([imported, sorted(command_tree().commands)])
print(json.dumps(results), file=sys.stderr)
"""


def test_only_the_named_command_is_built(tmp_path):
    lines = [["--version"], ["config", "data"], ["raed"], ["config", "data", "--json"], ["--help"]]
    command = [sys.executable, "-c", BUILT, json.dumps(lines)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    *light, everything = json.loads(done.stderr.splitlines()[-1])
    topics = [["topics"], ["config"]]
    assert light == [[[], []], topics, topics, topics]
    assert everything[0] == list(MODULES_OF_COMMANDS) and len(everything[1]) == 30


@pytest.mark.slow
def test_the_probe_would_notice(tmp_path):
    create, duplication = imported(
        [["create", "data", "users"], ["append", "data", "users", "a", "1"], ["duplication", "data"]],
        tmp_path,
    )[::2]
    assert create[2] == [] and duplication[2] == ["numpy", "llvmlite"]


def test_importing_lastword_costs_little_more_than_python():
    """Compared with NumPy's import in the same run, because machines and their load differ."""
    code = (
        "import sys; import {0}; assert not [n for n in ('numba', 'pyarrow', 'pyspark') if n in sys.modules]"
    )

    def seconds(module):
        taken = []
        for _ in range(3):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code.format(module)], check=True)
            taken.append(time.perf_counter() - started)
        return min(taken)

    assert seconds("lastword") < 0.05 + seconds("numpy")


def test_every_public_name_is_there():
    import lastword

    for name in lastword.__all__:
        if name != "spark":  # needs PySpark
            assert getattr(lastword, name) is not None
    assert set(lastword.__all__) <= set(dir(lastword))
    with pytest.raises(AttributeError):
        _ = lastword.opem


def test_a_command_runs_without_docstrings(tmp_path):
    """PYTHONOPTIMIZE=2 removes them: `--help` and descriptions of settings are shorter, nothing else."""
    command = [sys.executable, "-OO", "-m", "lastword", "create", "data", "users"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
