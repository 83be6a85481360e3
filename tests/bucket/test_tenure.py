"""`Tenure` and `ServerSession`: at most one server answers clients, and only its commits come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.bucket import servers as servers_module
from lastword.bucket import tenure as tenure_module
from lastword.bucket.commit import Bucket
from lastword.bucket.manifest import MOST_NODES, Manifest, Servers
from lastword.bucket.servers import ServerSession
from lastword.bucket.tenure import Role, Tenure
from lastword.clock import ManualClock
from lastword.errors import LastwordError, ServerFencedError, UncertainCommitError
from tests.fakes import objects
from tests.fakes.objects import Fault, Planned

Patch = pytest.MonkeyPatch
TIMEOUT_MS, HEARTBEAT_MS = 9_000, 2_000

# ---------------------------------------------------------------- the decision alone


@dataclass
class Swap:
    """A swap that was sent. It may have its effect at any time, once, if its version is the newest then."""

    server: Server
    base: int
    following: Servers
    began: float
    is_in: bool | None = None  # None: it had no effect yet


@dataclass
class Server:
    tenure: Tenure
    ahead: float  # its clock minus the time of the model
    read: tuple[int, Servers] = (-1, Servers())  # number and servers of the version that it read last
    swap: Swap | None = None


@dataclass
class Model:
    """A manifest, and three servers of which each step is of its own: reads, swaps, effects, answers."""

    now: float = 0.0
    number: int = 0
    servers: Servers = field(default_factory=Servers)
    members: list[Server] = field(default_factory=list)
    swaps: list[Swap] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, ahead in enumerate((0.0, -5e6, 7e3)):
            self.members.append(Server(Tenure(f"{index}", TIMEOUT_MS), ahead))
            self.servers = self.servers.joined(f"{index}:1", "")

    def wait(self, server: Server, amount: int) -> None:
        self.now += (0.0, 0.3, 0.95, 1.0)[amount % 4] * TIMEOUT_MS / 1000 * (amount // 4 + 1) / 4

    def read(self, server: Server, _: int) -> None:
        server.read = self.number, self.servers
        server.tenure.seen(self.servers, self.now + server.ahead)

    def send(self, server: Server, _: int) -> None:
        """Send the swap that the role demands, made from the version that was read."""
        base, known = server.read
        tenure = server.tenure
        if server.swap is not None or base < 0:
            return
        role = tenure.role(self.now + server.ahead)
        if role is Role.DUE:
            following = known.taken_over(f"{self.members.index(server)}:1", tenure.session, TIMEOUT_MS)
        elif tenure.epoch and not tenure.is_ending:
            try:
                following = tenure.renewed(known, "")
            except ServerFencedError:
                self.members[self.members.index(server)] = Server(
                    Tenure(f"{tenure.session}+", TIMEOUT_MS), server.ahead
                )
                return
        else:
            return
        server.swap = Swap(server, base, following, self.now + server.ahead)
        self.swaps.append(server.swap)

    def end(self, server: Server, _: int) -> None:
        """Send the end of a session."""
        if server.swap is None and server.tenure.epoch and server.read[1].session == server.tenure.session:
            ended = replace(server.read[1], session="", renewals=server.read[1].renewals + 1)
            server.tenure.is_ending = True
            server.swap = Swap(server, server.read[0], ended, self.now + server.ahead)
            self.swaps.append(server.swap)

    def effect(self, _: Server, which: int) -> None:
        """Let one of the swaps that were sent have its effect."""
        waiting = [swap for swap in self.swaps if swap.is_in is None]
        if not waiting:
            return
        swap = waiting[which % len(waiting)]
        swap.is_in = swap.base == self.number
        if swap.is_in:
            session = swap.server.tenure.session
            is_takeover = swap.following.epoch > self.servers.epoch
            assert is_takeover or self.servers.session == session, "fence"
            self.number, self.servers = self.number + 1, swap.following

    def answer(self, server: Server, which: int) -> None:
        """Let the answer to a swap arrive; or it is lost, and a later read shows the commit."""
        swap = server.swap
        if swap is not None and swap.is_in is not None:
            server.swap = None
            if swap.is_in and which % 3:
                server.tenure.won(swap.following, swap.began)

    def other(self, server: Server, _: int) -> None:
        """Let another writer commit."""
        self.number += 1

    def serve(self, server: Server, _: int) -> None:
        """Answer a client, if the role allows it."""
        if server.tenure.role(self.now + server.ahead) is Role.ACTIVE:
            assert self.servers.session == server.tenure.session, "answer"


STEPS: dict[str, Callable[[Model, Server, int], None]] = {
    name: getattr(Model, name)
    for name in ("wait", "read", "send", "effect", "answer", "serve", "other", "end")
}
WEIGHTED = [*STEPS, "wait", "read", "read", "send", "effect", "effect", "answer", "answer", "serve", "serve"]


def run_model(steps: list[tuple[str, int, int]]) -> Model:
    model = Model()
    for name, index, number in steps:
        STEPS[name](model, model.members[index], number)
        if name in ("answer", "wait", "read"):
            for server in model.members:
                model.serve(server, 0)
    return model


@given(st.lists(st.tuples(st.sampled_from(WEIGHTED), st.integers(0, 2), st.integers(0, 11)), max_size=60))
def test_one_server_answers(steps: list[tuple[str, int, int]]) -> None:
    """Reads, swaps and answers in any order, lost or late, with waits anywhere."""
    run_model(steps)


def random_steps(seed: int) -> list[tuple[str, int, int]]:
    rng = Random(seed)
    return [(rng.choice(WEIGHTED), rng.randrange(3), rng.randrange(12)) for _ in range(200)]


def found(most: int = 3000) -> str:
    """Return the rule that the first of these runs violates."""
    for seed in range(most):
        try:
            run_model(random_steps(seed))
        except AssertionError as error:
            return str(error).partition("\n")[0]
    return ""


def test_long_runs() -> None:
    """In the same runs in which each planted fault is found, without one none is; all servers take over."""
    epochs = [run_model(random_steps(seed)).servers.epoch for seed in range(300)]
    assert sum(epochs) > 300 and max(epochs) >= 4


@pytest.mark.parametrize("fault", ["share", "end of the swap", "no epoch", "own reads", "ending"])
def test_planted(fault: str, monkeypatch: Patch) -> None:
    if fault == "share":  # a stale server that answers
        monkeypatch.setattr(tenure_module, "ANSWERING", 1.5)
    elif fault == "end of the swap":
        won = Tenure.won
        late = 1.5 * TIMEOUT_MS / 1000
        monkeypatch.setattr(Tenure, "won", lambda tenure, s, began: won(tenure, s, began + late))
    elif fault == "no epoch":
        monkeypatch.setattr(Tenure, "renewed", lambda tenure, s, url: replace(s, renewals=s.renewals + 1))
    elif fault == "own reads":  # a read is taken as a renewal
        seen = Tenure.seen

        def renewing(tenure: Tenure, servers: Servers, now: float) -> None:
            seen(tenure, servers, now)
            if servers.session == tenure.session:
                tenure.renewed_at = now

        monkeypatch.setattr(Tenure, "seen", renewing)
    else:
        monkeypatch.setattr(Tenure, "is_ending", property(lambda _: False, lambda *_: None), raising=False)
    assert found() == ("fence" if fault == "no epoch" else "answer")


# ---------------------------------------------------------------- the session, on the double


class Process:
    """A process with a session on the double; all processes of a test share its clock."""

    def __init__(self, world: objects.Bucket, name: str, plan: dict[int, Fault] | None = None) -> None:
        self.store = world.process(name, faults=Planned(plan or {}))
        self.bucket = Bucket(self.store, clock=world.clock, rng=Random(name))
        self.session = ServerSession(
            self.bucket, f"{name}:9092", name, timeout_ms=TIMEOUT_MS, heartbeat_ms=HEARTBEAT_MS
        )

    def put(self, name: str) -> None:
        self.bucket.transaction(lambda files: files.write_atomic(f"{files.root}/{name}", b"x"))

    def active(self) -> str:
        node = self.bucket.load().manifest.servers.node
        return "" if node is None else node.name


@pytest.fixture
def world() -> objects.Bucket:
    return objects.Bucket(clock=ManualClock())


def test_a_takeover_and_a_fence(world: objects.Bucket) -> None:
    a, b = Process(world, "a"), Process(world, "b")
    assert a.session.step() is Role.ACTIVE
    assert b.session.step() is Role.STANDBY and b.session.active == (1, "a:9092", "a")
    world.clock.advance(TIMEOUT_MS - 1)
    assert b.session.step() is Role.STANDBY and a.session.role is Role.LAPSED
    world.clock.advance(1)
    assert b.session.step() is Role.ACTIVE and b.active() == "b"
    for change in (
        lambda: a.put("x"),
        lambda: a.bucket.pin(1000),
        lambda: a.bucket.edit(lambda base: base.manifest),
    ):
        with pytest.raises(ServerFencedError):
            change()
    assert a.session.step() is Role.FENCED
    b.put("y")
    assert set(b.bucket.load().snapshot.children("")) == {"y"}


def test_a_commit_renews_and_an_idle_server_swaps_each_heartbeat(world: objects.Bucket) -> None:
    a, b = Process(world, "a"), Process(world, "b")
    a.session.step()
    for _ in range(5):
        world.clock.advance(TIMEOUT_MS // 2)
        a.put("x") if world.clock.now_ms() % 2 else a.session.step()
        assert (a.session.role, b.session.step()) == (Role.ACTIVE, Role.STANDBY)
    swaps = world.requests["swap"]
    a.session.step()
    assert world.requests["swap"] == swaps and a.session.pause_seconds == HEARTBEAT_MS / 1000
    assert b.session.pause_seconds == TIMEOUT_MS / 1000 / servers_module.POLLS
    world.clock.advance(HEARTBEAT_MS)
    a.session.step()
    assert world.requests["swap"] == swaps + 1


def test_commits_of_others_are_no_renewal_and_keep_the_servers(world: objects.Bucket) -> None:
    a, b = Process(world, "a"), Process(world, "b")
    writer = Bucket(world.process("writer"), clock=world.clock, rng=Random(1))
    a.session.step()
    b.session.step()
    for n in range(10):
        world.clock.advance(TIMEOUT_MS // 10)
        writer.transaction(lambda files, n=n: files.write_atomic(f"{files.root}/{n}", b""))
    assert writer.load().manifest.servers.epoch == 1
    assert b.session.step() is Role.ACTIVE
    writer.transaction(lambda files: files.write_atomic(f"{files.root}/w", b""))
    assert writer.load().manifest.servers.node == (2, "b:9092", "b")


def test_an_end_is_taken_over_immediately(world: objects.Bucket) -> None:
    a, b = Process(world, "a"), Process(world, "b")
    a.session.step()
    b.session.step()
    a.session.end()
    assert a.active() == "" and b.session.step() is Role.ACTIVE
    assert [node.name for node in b.bucket.load().manifest.servers.nodes] == ["b"]
    a.put("x")  # as any other writer


def test_a_lost_answer_renews_from_its_beginning(world: objects.Bucket) -> None:
    a = Process(world, "a", {})
    a.session.step()
    world.clock.advance(HEARTBEAT_MS)
    began = world.clock.boottime()
    number = a.store.number
    a.store.faults = Planned({number + 2: Fault.LOST})
    assert a.session.step() is Role.ACTIVE and a.session.tenure.renewed_at == began


def test_an_end_without_an_answer_ends_the_answers(world: objects.Bucket) -> None:
    a = Process(world, "a")
    a.session.step()
    faults = {number: Fault.LATE if number == a.store.number + 2 else Fault.REFUSED for number in range(200)}
    faults.pop(a.store.number + 1)
    a.store.faults = Planned({n: f for n, f in faults.items() if n > a.store.number})
    with pytest.raises(UncertainCommitError):
        a.session.end()
    assert a.session.role is Role.FENCED


def test_an_end_that_failed_lets_the_process_commit_and_a_standby_take_over(world: objects.Bucket) -> None:
    a, b = Process(world, "a"), Process(world, "b")
    a.session.step()
    b.session.step()
    a.store.faults = Planned({a.store.number + n: Fault.REFUSED for n in range(1, 200)})
    with pytest.raises(LastwordError):
        a.session.end()
    a.store.faults = Planned({})
    a.put("x")  # no renewal
    world.clock.advance(TIMEOUT_MS)
    assert b.session.step() is Role.ACTIVE
    a.put("y")


def test_a_standby_at_the_address_of_the_active_server_ends_no_session(world: objects.Bucket) -> None:
    a, again = Process(world, "a"), Process(world, "a")
    again.session.tenure.session = "of another seed"
    assert (a.session.step(), again.session.step()) == (Role.ACTIVE, Role.STANDBY)
    again.session.end()
    world.clock.advance(HEARTBEAT_MS)
    assert a.session.step() is Role.ACTIVE and a.active() == "a"


def test_a_takeover_whose_answer_was_lost_is_a_session(world: objects.Bucket) -> None:
    a = Process(world, "a")
    a.session.tenure.seen(Servers(3, a.session.tenure.session, 0, 1, TIMEOUT_MS), 0.0)
    assert a.session.role is Role.LAPSED


def test_a_standby_waits_as_long_as_the_active_server_says(world: objects.Bucket) -> None:
    a = Process(world, "a")
    a.session.tenure.timeout_ms = 60_000
    a.session.step()
    b = Process(world, "b")
    b.session.step()
    world.clock.advance(59_999)
    assert b.session.step() is Role.STANDBY
    world.clock.advance(1)
    assert b.session.step() is Role.ACTIVE


def test_two_standbys_and_a_store_that_fails() -> None:
    for seed in range(40):
        rng = Random(seed)
        world = objects.Bucket(clock=ManualClock())
        a, b, c = (Process(world, name) for name in "abc")
        for process in (a, b, c):
            process.session.step()
        for process in (b, c):
            process.store.faults = objects.Seeded(rng, 0.3, (Fault.REFUSED, Fault.LOST, Fault.REPEATED))
        world.clock.advance(TIMEOUT_MS)
        for _ in range(20):
            for process in (b, c):
                try:
                    process.session.step()
                except LastwordError:
                    continue
        newest = a.bucket.load().manifest.servers
        assert newest.epoch == 2
        assert [p.session.tenure.epoch for p in (b, c)].count(2) == 1


# ---------------------------------------------------------------- the servers of a manifest


def test_ids_are_kept_and_not_given_twice() -> None:
    servers = Servers().joined("a:1", "a").joined("b:1", "b")
    assert servers.joined("a:1", "other").nodes[-1].id == 1
    active = servers.taken_over("b:1", "s", 1)
    assert active.node is not None and active.node.id == 2
    assert active.without("b:1", "s").joined("c:1", "c").nodes[-1].id == 3
    for number in range(20):
        active = active.joined(f"{number}:1", "")
    assert len(active.nodes) == MOST_NODES and active.node is not None
    manifest = Manifest("n", servers=active)
    assert Manifest.decode(manifest.encode(), "").servers == active
