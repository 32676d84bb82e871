"""`locks export`, `python -m locksfl` and completion, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import onnxruntime

from locksfl import load
from locksfl.cli.main import main
from small_runs import finished


def call(*words, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "locksfl", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stdout, done.stderr


def test_python_m_is_the_program():
    code, told, beside = call("--version")
    assert (code, beside) == (0, "")
    assert told.startswith("locks ")
    code, told, beside = call("rn")
    assert (code, told) == (2, "")
    assert "No such command 'rn'" in beside


def test_shells_complete_commands():
    asked = {"_LOCKS_COMPLETE": "complete_bash", "COMP_WORDS": "locks ex", "COMP_CWORD": "1"}
    code, told, _ = call(**asked)
    assert (code, told.split()) == (0, ["export"])
    assert "--install-completion" in call("--help")[1]


def test_a_model_of_a_run_is_exported(tmp_path, capsys, monkeypatch):
    model = finished() / "model-locks.npz"
    file = tmp_path / "model.onnx"

    def locks(*words):
        monkeypatch.setattr(sys, "argv", ["locks", *map(str, words)])
        try:
            main()
        except SystemExit as end:
            return end.code or 0, capsys.readouterr().err
        raise AssertionError("it does not return")

    assert locks("export", model, file) == (0, "")
    images = np.random.default_rng(0).integers(0, 255, (3, 28, 28)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"records": images})
    np.testing.assert_allclose(scores, load(model).scores(images), rtol=1e-4, atol=1e-4)
    code, told = locks("export", model, file)
    assert (code, told.count("\n")) == (2, 1)
    assert "already exists" in told
    code, told = locks("export", model, tmp_path / "model.h5")
    assert (code, told.count("\n")) == (2, 1)
    assert "expected a name that ends in .npz, .safetensors or .onnx" in told
