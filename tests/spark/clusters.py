"""Spark with executors in their own processes on this machine: `local-cluster`, or a master with workers.

`make clusters` runs every step of `cluster_all.py` on both.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import stores
from tests.support.jars import cache_directory, publish
from tests.support.stores import Server

HERE = Path(__file__).parent


def farm(home: Path) -> Path:
    """Make a SPARK_HOME of links: executors of a local cluster write `work` there, not into the package.

    `python` is left out. It holds pyspark as a zip file, from which each Python process of Spark would
    compile the modules again (0.5 s of CPU). Without it these processes import the installed package.
    """
    import pyspark

    spark_home = home / "spark"
    spark_home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name not in ("python", "jars"):
            (spark_home / entry.name).symlink_to(entry)
    (spark_home / "jars").symlink_to(kept_home() / "jars")
    return spark_home


def kept_home() -> Path:
    """Return a SPARK_HOME of the cache with the programs and jars of this Spark; make it if there is none.

    Its files are hard links of the package's, or copies on another drive. A class archive fits only the jars
    from which it was made: the next environment brings the same jars as other files.
    """
    import pyspark

    package = Path(pyspark.__file__).parent
    sizes = sorted((path.name, path.stat().st_size) for path in (package / "jars").glob("*.jar"))
    digest = hashlib.sha256(repr(sizes).encode()).hexdigest()[:16]
    home = cache_directory() / f"spark-{pyspark.__version__}-{digest}"
    if not home.exists():
        private = home.with_name(f"{home.name}.{os.getpid()}")
        for name in ("bin", "jars"):
            shutil.copytree(package / name, private / name, copy_function=_link_or_copy)
        publish(private, home)
    return home


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def class_archive() -> Path:
    """Return the archive of the classes that this Spark loads on this Java; make it if there is none.

    A JVM of Spark that maps it takes half the CPU to start and to run the first query (4.8 s, not 9.7 s).
    """
    from lastword.spark.bootstrap import find_java

    spark_home = kept_home()
    modules = find_java().home.resolve() / "lib" / "modules"
    identity = f"{modules} {modules.stat().st_mtime_ns}"
    archive = spark_home / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"
    with archive.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory() as scratch:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # test-spark and test-beside run beside each other
        if not archive.exists():
            unfinished = archive.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            jvm = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={unfinished}"
            script(
                "cluster_all.py", "local[2]", scratch, "wrote", "streamed",
                home=Path(scratch), SPARK_HOME=str(spark_home), DRIVER_JVM=jvm,
            )  # fmt: skip
            if unfinished.exists():  # not every build of Java writes one; a JVM ignores a missing archive
                unfinished.replace(archive)
    return archive


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of a Spark driver; PYTHONPATH has only these tests: the package is installed."""
    from lastword.spark.bootstrap import find_java, usable_home

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"
    return {
        **os.environ,
        "JAVA_HOME": str(usable_home(find_java(), cache)),
        "PYTHONPATH": str(HERE.parents[1]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        **more,
    }


def script(name: str, *arguments: str, home: Path, seconds: int = 600, **more: str) -> list[str]:
    """Run a script of this folder to its end; return the words that it printed."""
    command = [sys.executable, str(HERE / name), *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=home,
        env=environment(home, **more), start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"{name} was not done in {seconds} s: {out}\n{err[-3000:]}") from None
    assert process.returncode == 0, f"{out}\n{err[-5000:]}"
    return out.split()


@contextmanager
def standalone(home: Path, **more: str) -> Iterator[str]:
    """Start a master and two workers with one core each by `spark-class`; yield the master's address.

    `more` is added to the environment of the executors.
    """
    port = free_port()
    spark_home = farm(home)
    quiet = environment(home, SPARK_HOME=str(spark_home), SPARK_WORKER_DIR=str(home / "work"), **more)
    del quiet["PYTHONPATH"], quiet["PYSPARK_PYTHON"], quiet["PYSPARK_DRIVER_PYTHON"]
    address = f"spark://127.0.0.1:{port}"
    daemon = "org.apache.spark.deploy"
    # Two hosts for Spark: it starts no speculative copy on the host of the first attempt.
    workers = [
        [f"{daemon}.worker.Worker", "-c", "1", "-m", "1200m", "--host", host, "--webui-port", "0", address]
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    master = [f"{daemon}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    log = home / "daemons.log"
    processes = []
    try:
        with log.open("ab") as out:
            for command in (master, *workers):
                processes.append(
                    subprocess.Popen(
                        [str(spark_home / "bin/spark-class"), *command],
                        env=quiet,
                        stdout=out,
                        stderr=out,
                        cwd=home,
                        start_new_session=True,
                    )
                )
                if command is master:
                    wait_for(log, "I have been elected leader", 90)
        wait_for(log, "Successfully registered with master", 90, times=len(workers))
        yield address
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(log: Path, said: str, seconds: int, *, times: int = 1) -> None:
    deadline = time.monotonic() + seconds
    while log.read_text().count(said) < times:
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def python_without(home: Path) -> Path:
    """Make a Python that lacks lastword where LASTWORD_ABSENT is set, as it is for executors."""
    import pyspark

    bare = home / "bare"
    bare.mkdir()
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        if "lastword" not in entry.name and entry.suffix != ".pth":
            (bare / entry.name).symlink_to(entry)
    return _python(
        home / "python",
        f'if [ -n "$LASTWORD_ABSENT" ]; then PYTHONPATH="{bare}" exec "{sys.executable}" -S "$@"; fi\n',
    )


def _python(path: Path, begin: str) -> Path:
    """Make a program that runs shell commands, and then Python."""
    path.write_text(f'#!/bin/sh\n{begin}exec "{sys.executable}" "$@"\n')
    path.chmod(0o755)
    return path


def private_mounts() -> list[str]:
    """Return the command that gives a process mounts of its own: as root, or in a namespace of users."""
    for command in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        with tempfile.TemporaryDirectory() as place, suppress(FileNotFoundError):
            mount = [*command, "mount", "-t", "tmpfs", "none", place]
            if subprocess.run(mount, capture_output=True).returncode == 0:
                return command
    return []


def python_apart(home: Path) -> Path:
    """Make a Python with an empty directory of its own in place of the one that LASTWORD_APART names.

    The variable is set for executors: they have nothing of the driver's directory, nor it of theirs. Its
    directory `tmp` is for temporary files of either.
    """
    apart = " ".join(private_mounts())
    return _python(
        home / "python-apart",
        'if [ -n "$LASTWORD_APART" ] && [ -z "$LASTWORD_MOUNTED" ]; then\n'
        f'LASTWORD_MOUNTED=yes exec {apart} "$0" "$@"; fi\n'
        'if [ -n "$LASTWORD_APART" ]; then\n'
        'mount -t tmpfs none "$LASTWORD_APART" && mkdir "$LASTWORD_APART/tmp" || exit 1; fi\n',
    )


def apart(home: Path, server: Server, log: str) -> dict[str, str]:
    """Return the environment of a driver that shares no directory with its executors, but a log in a bucket.

    The credentials are in the environment, the address of the store in its options.
    """
    (home / "driver" / "tmp").mkdir(parents=True)
    python = str(python_apart(home))
    return {
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "TMPDIR": str(home / "driver" / "tmp"),
        "APART": str(home / "driver"),
        "LOG_URL": f"{server.root}/{log}",
        "LOG_OPTIONS": json.dumps({name: server.options[name] for name in ("endpoint", "region")}),
        **credentials(server),
    }


def credentials(server: Server) -> dict[str, str]:
    """Return the variables with the credentials of a store: of S3."""
    return {f"AWS_{name.upper()}": server.options[name] for name in ("access_key_id", "secret_access_key")}


def main() -> int:
    steps = ["wrote", "killed_in_write", "streamed", "looked", "killed_in_rewrite"]
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="lastword-clusters-"))
    for name in ("cluster", "alone", "lacking"):
        (home / name).mkdir()
    spark_home = farm(home / "cluster")
    done = script(
        "cluster_all.py", "local-cluster[2,1,1024]", str(home / "cluster"), *steps,
        home=home / "cluster", SPARK_HOME=str(spark_home),
    )  # fmt: skip
    print("local-cluster[2,1,1024]:", ", ".join(done), flush=True)
    with standalone(home / "alone") as address:
        done = script(
            "cluster_all.py", address, str(home / "alone"), *steps, "sped_up", "unshared", home=home / "alone"
        )
        print("standalone:", ", ".join(done), flush=True)
    (home / "bucket").mkdir()
    with stores.moto() as server, standalone(home / "bucket", **credentials(server)) as address:
        where = apart(home / "bucket", server, "clusters")
        done = script(
            "cluster_all.py",
            address,
            str(home / "bucket"),
            "in_bucket",
            home=home / "bucket" / "driver",
            **where,  # type: ignore[arg-type]
        )
        print("standalone, a log in a bucket:", ", ".join(done), flush=True)
    python = str(python_without(home / "lacking"))
    with standalone(home / "lacking", LASTWORD_ABSENT="yes") as address:
        done = script(
            "cluster_all.py", address, str(home / "lacking"), "absent",
            home=home / "lacking", PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python,
        )  # fmt: skip
        print("standalone, executors without lastword:", ", ".join(done), flush=True)
    shutil.rmtree(home)
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
