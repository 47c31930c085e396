"""The programs as an operator meets them: command lines, unusable databases, ends of every kind, memory."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from serving import PROGRAM, add, environment, infer, whole
from wire import Wire

from cks_runtime.flow.check import check_database

SWEEPERS = [sys.executable, "-m", "sweepers"]
EXIT_S = 5.0


def run(*command: str, db_path: object = ":memory:", **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=environment(db_path, **settings), capture_output=True, text=True, timeout=60, check=False
    )


def server(db_path: object, **options: Any) -> Wire:
    settings = options.pop("settings", {})
    return Wire([PROGRAM], environment=environment(db_path, **settings), **options)


def ok(wire: Wire, tool: str, **arguments: Any) -> dict[str, Any]:
    result = wire.call(tool, arguments, 60)
    assert not result["isError"], result
    found: dict[str, Any] = result["structuredContent"]
    return found


def rows(db_path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(db_path)) as conn:
        return conn.execute(sql).fetchall()


def problems(db_path: Path) -> list[str]:
    """What `cks-mcp check` would say; makes the database if it is missing."""
    return anyio.run(check_database, str(db_path)).problems


def assert_sound(db_path: Path) -> None:
    """Nothing is damaged, and no lease waits for a process that is gone."""
    assert problems(db_path) == []
    assert rows(db_path, "SELECT name FROM leases") == []


def child(number: int) -> int:
    """The first child of a process."""
    return int(Path(f"/proc/{number}/task/{number}/children").read_text().split()[0])


@pytest.fixture
def db_path(tmp_path: Path) -> Path:
    return tmp_path / "cks.db"


# ---- command lines


def test_help_version_and_secret() -> None:
    for command in ([PROGRAM], SWEEPERS):
        told = run(*command, "--help")
        assert told.returncode == 0 and "CKS_MCP_DB_PATH" in told.stdout and told.stderr == ""
        told = run(*command, "--version")
        assert told.returncode == 0 and "0.1.0" in told.stdout
        wrong = run(*command, "--no-such-option")
        assert wrong.returncode == 2 and wrong.stdout == "" and "usage" in wrong.stderr
    secrets = {run(PROGRAM, "secret").stdout.strip() for _ in range(2)}
    assert len(secrets) == 2 and all(len(secret.encode()) >= 32 for secret in secrets)


def test_check_makes_reads_and_reports(db_path: Path) -> None:
    fresh = run(PROGRAM, "check", db_path=db_path)
    assert (
        fresh.returncode == 0
        and db_path.exists()
        and "it was made" in fresh.stdout
        and "no problems" in fresh.stdout
    )
    with server(db_path) as wire:
        ok(wire.start(), "evolve_knowledge", operations=[add("sun", mass=1)])
    with closing(sqlite3.connect(db_path)) as conn:
        conn.execute("UPDATE blobs SET data = CAST(replace(CAST(data AS TEXT), 'mass', 'MASS') AS BLOB)")
        conn.commit()
    damaged = run(PROGRAM, "check", db_path=db_path)
    assert damaged.returncode == 1 and "do not match their hash" in damaged.stdout and damaged.stderr == ""


def test_the_database_is_made_private_where_the_home_is(tmp_path: Path) -> None:
    surroundings = {**environment("~/deep/er/cks.db"), "HOME": str(tmp_path)}
    told = subprocess.run([PROGRAM, "check"], env=surroundings, capture_output=True, timeout=60, check=False)
    made = tmp_path / "deep" / "er" / "cks.db"
    assert told.returncode == 0 and stat.S_IMODE(made.stat().st_mode) == 0o600
    assert (
        stat.S_IMODE(made.parent.stat().st_mode) == stat.S_IMODE(made.parent.parent.stat().st_mode) == 0o700
    )


def test_the_log_says_what_runs_and_stdout_carries_messages_only(db_path: Path) -> None:
    settings = {"CKS_LOG_LEVEL": "DEBUG", "CKS_TEMPORAL_SWEEP_INTERVAL": "off"}
    with server(db_path, settings=settings, stderr=subprocess.PIPE) as wire:
        ok(wire.start(), "evolve_knowledge", operations=[add("a")])
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(EXIT_S) == 0
        assert wire.rest() == b""
        assert wire.process.stderr is not None
        log = wire.process.stderr.read().decode()
    assert "[CKS-MCP] Gossip disabled" in log and "[CKS-MCP] Sweeper temporal: off" in log
    assert "[CKS-MCP] Sweeper inference: every 300 s" in log


# ---- unusable databases


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database, but it is long enough for a header" * 100)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE customers (id INTEGER)")


def folder(path: Path) -> None:
    path.mkdir()


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("a file")


def from_the_future(path: Path) -> None:
    assert problems(path) == []
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE migrations SET checksum = 'altered'")
        conn.commit()


def damaged_header(path: Path) -> None:
    assert problems(path) == []
    with path.open("r+b") as file:
        file.write(b"\x00" * 64)


SPOILS = (garbage, foreign, folder, below_a_file, from_the_future, damaged_header)


def test_an_unusable_database_ends_the_program_with_one_line(tmp_path: Path) -> None:
    started: list[tuple[Path, Wire]] = []
    for spoil in SPOILS:
        path = tmp_path / spoil.__name__ / "spoilt.db"
        path.parent.mkdir()
        spoil(path)
        others = ([PROGRAM, "check"], [*SWEEPERS, "--once"]) if spoil is garbage else ()
        for command in ([PROGRAM], *others):
            started.append((path, Wire(command, environment=environment(path), stderr=subprocess.PIPE)))
    for path, wire in started:
        with wire:
            assert wire.process.wait(60) == 2
            assert wire.rest() == b"" and wire.process.stderr is not None
            (line,) = wire.process.stderr.read().decode().strip().splitlines()
            assert str(path) in line and "Traceback" not in line
    assert sorted(os.listdir(tmp_path)) == sorted(spoil.__name__ for spoil in SPOILS)


def test_a_store_that_is_not_built_in_says_so() -> None:
    told = run(PROGRAM, db_path="postgresql://someone:hunter2@nowhere.invalid/cks", CKS_LOG_LEVEL="INFO")
    assert told.returncode == 2 and "hunter2" not in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1


# ---- in memory


def test_a_database_in_memory_does_everything_but_the_outbox() -> None:
    settings = {"CKS_TOOLSETS": "core,conflicts,documents,agent"}
    with server(":memory:", settings=settings) as wire:
        wire.start()
        steps = [infer("i", ["a"], "b", 0.1), infer("j", ["a"], "b", 0.2)]
        ok(
            wire,
            "evolve_knowledge",
            operations=[add("a", valid_until="2020-01-01T00:00:00Z"), add("b"), *steps],
        )
        deadline = time.monotonic() + 30
        while not (told := ok(wire, "list_inference_conflicts", peek=True))["count"]:
            assert time.monotonic() < deadline
        assert told["conflicts"][0]["session_id"] == "main" and told["enabled"] is True
        assert ok(wire, "list_inference_conflicts")["count"] == 1
        branch = ok(wire, "create_branch")["session_id"]
        ok(wire, "evolve_knowledge", session_id=branch, operations=[add("c")])
        assert ok(wire, "merge_branch", target_session_id="main", source_session_id=branch)["merged"] is True
        assert ok(wire, "search_knowledge", query="c")["hits"]
        status = ok(wire, "runtime_status")
        assert status["store"]["location"] == ":memory:" and status["store"]["outbox"] is False
        assert "outbox" not in status["queues"]
        for tool in ("list_dead_lettered_conflicts", "claim_conflict_task"):
            assert ok(wire, tool)["supported"] is False
    with server(":memory:") as wire:
        assert ok(wire.start(), "explain_knowledge")["counts"]["objects"] == 0


# ---- ends


def busy(wire: Wire, count: int = 30) -> None:
    """Many writes on their way."""
    for number in range(count):
        steps = [infer(f"i{number}{k}", [f"a{number}"], f"b{number}", k / 10) for k in range(5)]
        operations = [add(f"a{number}"), add(f"b{number}"), *steps]
        wire.request("tools/call", {"name": "evolve_knowledge", "arguments": {"operations": operations}})


def test_sigterm_in_the_midst_of_writes(db_path: Path) -> None:
    for number, sent in enumerate((signal.SIGTERM, signal.SIGINT)):
        with server(db_path) as wire:
            wire.start()
            busy(wire)
            for _ in range(number * 10):
                wire.read()
            wire.process.send_signal(sent)
            assert wire.process.wait(EXIT_S) == 0
        assert rows(db_path, "SELECT name FROM leases") == []
    assert_sound(db_path)


def test_end_of_input_answers_what_was_asked_and_ends(db_path: Path) -> None:
    with server(db_path) as wire:
        wire.start()
        ok(wire, "evolve_knowledge", operations=[add("sun")])
        wanted = wire.request("tools/call", {"name": "explain_knowledge", "arguments": {}})
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        assert wire.read()["id"] == wanted
        assert wire.process.wait(EXIT_S) == 0
    assert_sound(db_path)


def test_a_server_ends_when_its_parent_is_killed(db_path: Path) -> None:
    # a shell in between, which is killed; the server notices by the end of its input
    script = f"exec 3<&0; {PROGRAM} <&3 & wait"
    with Wire(["sh", "-c", script], environment=environment(db_path)) as wire:
        wire.start()
        busy(wire, 5)
        number = child(wire.process.pid)
        wire.process.kill()
        assert wire.process.wait(EXIT_S) == -signal.SIGKILL
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        deadline = time.monotonic() + EXIT_S
        while running(number):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert_sound(db_path)


def running(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("command", [[PROGRAM], SWEEPERS, [*SWEEPERS, "--once"]], ids=len)
def test_a_signal_early_in_the_start_ends_with_code_0(db_path: Path, command: list[str]) -> None:
    with Wire(command, environment=environment(db_path)) as wire:
        deadline = time.monotonic() + 30
        while not handles(wire.process.pid):
            assert time.monotonic() < deadline and wire.process.poll() is None
            time.sleep(0.005)
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(EXIT_S) == 0


def handles(number: int) -> bool:
    """Whether a process has a handler of its own for SIGTERM."""
    status = Path(f"/proc/{number}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


# ---- sweepers as a program


def test_sweepers_on_their_own_find_what_a_server_leaves(db_path: Path) -> None:
    off = {f"CKS_{name}_SWEEP_INTERVAL": "off" for name in ("INFERENCE", "PROVENANCE", "TEMPORAL")}
    with server(db_path, settings=off) as wire:
        wire.start()
        steps = [infer("i", ["a"], "b", 0.1), infer("j", ["a"], "b", 0.2)]
        ok(
            wire,
            "evolve_knowledge",
            operations=[add("a", valid_until="2020-01-01T00:00:00Z"), add("b"), *steps],
        )
        told = run(*SWEEPERS, "--once", db_path=db_path)
        assert told.returncode == 0
        reports = {report["sweeper"]: report for report in map(json.loads, told.stdout.splitlines())}
        assert {name: report["raised"] for name, report in reports.items()} == {
            "inference": 1,
            "provenance": 0,
            "temporal": 1,
        }
        assert ok(wire, "list_inference_conflicts", peek=True)["count"] == 1
        with Wire(SWEEPERS, environment=environment(db_path)) as sweepers:
            ok(
                wire,
                "evolve_knowledge",
                operations=[{"op": "resolve_inference_conflict", "conclusion_id": "b", "winner_id": "i"}],
            )
            deadline = time.monotonic() + 30
            while ok(wire, "list_inference_conflicts", state="closed")["count"] == 0:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            sweepers.process.send_signal(signal.SIGTERM)
            assert sweepers.process.wait(EXIT_S) == 0
    assert_sound(db_path)


# ---- memory and slow calls


@pytest.fixture(scope="module")
def long_lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    with server(tmp_path_factory.mktemp("long") / "cks.db") as wire:
        yield wire.start()


def rss_bytes(wire: Wire) -> int:
    pages = int(Path(f"/proc/{wire.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def mixed_calls(wire: Wire, count: int) -> None:
    for number in range(count):
        ok(wire, "explain_knowledge")
        ok(wire, "list_inference_conflicts", peek=True)
        ok(wire, "search_knowledge", query=f"word{number % 7}")
        wire.call("explain_knowledge", {"object_id": f"missing {number}"})
        wire.call("list_versions", {"limit": f"wrong {number}"})
        wire.call("evolve_knowledge", {"operations": [{"op": f"unknown {number}"}]})
        if number % 10 == 0:
            ok(
                wire,
                "evolve_knowledge",
                operations=[{"op": "update_object", "object_id": "a", "structure_patch": {"n": number}}],
            )


def test_memory_stays_bounded_over_many_calls(long_lived: Wire) -> None:
    ok(long_lived, "evolve_knowledge", operations=[add("a"), add("b")])
    mixed_calls(long_lived, 40)  # what is loaded lazily is loaded by now
    before = rss_bytes(long_lived)
    mixed_calls(long_lived, 120)
    assert rss_bytes(long_lived) - before < 20_000_000


def test_pings_are_answered_while_a_large_import_goes_on(long_lived: Wire) -> None:
    knowledge = {"objects": [whole(f"o{k}", text="x" * 100) for k in range(12_000)]}
    wanted = long_lived.request(
        "tools/call", {"name": "evolve_knowledge", "arguments": {"knowledge": knowledge}}
    )
    answered = 0
    while True:
        ping = long_lived.request("ping")
        message = long_lived.read(60)
        if message["id"] == wanted:
            break
        assert message["id"] == ping
        answered += 1
    assert message["result"]["structuredContent"]["changed"]["added"]["count"] == 12_000
    assert long_lived.read(60)["id"] == ping
    assert answered > 20
