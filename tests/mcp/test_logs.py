"""Logging: both formats, no secret in any of them, and no waiting for a reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cks_runtime.logs import PatientStream

PROGRAM = """
import logging, sys, structlog
from cks_runtime.logs import configure_logging
secret = 'se"cret\\\\ of the ü house'
configure_logging(level=sys.argv[1], format=sys.argv[2], secrets=[secret, 'ab'])
log = logging.getLogger('cks.test')
log.debug('details')
log.info('cab says %s', secret, extra={'more': secret, 'token': 'hush-hush'})
structlog.get_logger('cks.other').warning('told', password='hush-hush', where=[secret])
try:
    raise ValueError(secret)
except ValueError:
    log.exception('failed \\ud800')
logging.getLogger('mcp.server').info('every message')
"""


def run(level: str, form: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, level, form], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_secret_is_shown(form: str) -> None:
    text = run("INFO", form)
    assert "house" not in text and "hush-hush" not in text and text.count("(secret)") >= 5
    assert "cab says" in text and "failed" in text and "ValueError" in text
    assert "details" not in text and "every message" not in text


def test_json_lines() -> None:
    lines = [json.loads(line) for line in run("DEBUG", "json").splitlines()]
    assert [line["event"].split()[0] for line in lines] == ["details", "cab", "told", "failed"]
    assert lines[1]["level"] == "info" and lines[1]["logger"] == "cks.test" and "timestamp" in lines[1]
    assert lines[3]["exception"].startswith("Traceback")


def test_lines_that_nobody_reads_are_dropped_and_counted(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as output, os.fdopen(writer, "wb") as file:
        stream = PatientStream(file)
        for _ in range(3000):
            stream.write("x" * 99 + "\n")
        assert 0 < stream.dropped < 3000
        dropped = stream.dropped
        os.read(output.fileno(), 1_000_000)
        stream.write("again\n")
        assert stream.dropped == 0
        assert os.read(output.fileno(), 1000).decode() == (
            f"{dropped} log lines were dropped because nobody read them\nagain\n"
        )
