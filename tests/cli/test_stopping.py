"""Ctrl-C ends a command that does not want to end."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STUBBORN = """
import signal, sys, threading
from locksfl.cli import stopping
stopping.SECONDS = float(sys.argv[1])
with stopping.stopping(lambda: "stopped; continue so"):
    try:
        print("up", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # as what drops every interrupt
            signal.signal(number, lambda *_: None)
        print("heard", flush=True)
    threading.Event().wait()
"""
ORDERLY = """
import threading
from locksfl.cli import stopping
try:
    with stopping.stopping(lambda: "never told"):
        print("up", flush=True)
        threading.Event().wait()
except KeyboardInterrupt:
    print("heard", flush=True)
"""


def begin(script, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once(number):
    process = begin(STUBBORN, "1e6")
    process.send_signal(number)
    assert process.stdout.readline() == "heard\n"
    assert process.poll() is None
    process.send_signal(number)
    assert process.communicate(timeout=60)[1] == "locks: stopped; continue so\n"
    assert process.returncode == 130


def test_one_is_enough_after_a_while():
    process = begin(STUBBORN, "0.1")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == "locks: stopped; continue so\n"
    assert process.returncode == 130


def test_a_command_that_ends_says_nothing_more():
    process = begin(ORDERLY)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("heard\n", "")
    assert process.returncode == 0
