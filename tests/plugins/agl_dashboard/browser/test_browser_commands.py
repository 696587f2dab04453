"""Commands that serve a store print the page's address, which opens with the server's token."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .steps import Open, visit
from .test_browser_access import REFUSED, SECRET, enter, state

pytestmark = pytest.mark.heavy

# The agent waits for a file, so that the page meets the run while it lasts.
TRAINING = """
import os, time
import agl_core as agl
from agl_algorithm_kit import Baseline

@agl.rollout
def agent(task, prompt_template):
    while not os.path.exists("end"):
        time.sleep(0.05)
    return 1.0

TASKS = [{"question": "how far?"}]
PROMPT = agl.PromptTemplate(template="Answer.", engine="f-string")

if __name__ == "__main__":
    trainer = agl.Trainer(
        strategy={"type": "cs", "server_port": 0}, n_runners=1, store="memory",
        algorithm=Baseline(), initial_resources={"main": PROMPT},
    )
    trainer.fit(agent, TASKS)
"""
TRAIN_FILE = """
agent = "training.py:agent"
train_dataset = "training.py:TASKS"
store = "memory"
algorithm = "baseline"
strategy = { type = "cs", server_port = 0 }

[resources.main]
type = "prompt_template"
engine = "f-string"
template = "Answer."
"""
AGL = ("-m", "agl_cli_kit")
COMMANDS = {
    "agl store": (*AGL, "store", "--backend", "memory", "--port", "0"),
    "agl train": (*AGL, "train", "train.toml"),
    "Trainer.fit": ("training.py",),
}


@pytest.fixture(params=COMMANDS)
def printed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Run a command in a process; return the address that it prints."""
    (tmp_path / "training.py").write_text(TRAINING)
    (tmp_path / "train.toml").write_text(TRAIN_FILE)
    process = subprocess.Popen(
        [sys.executable, "-u", *COMMANDS[request.param]],
        cwd=tmp_path,
        env={**os.environ, "AGL_AUTH_TOKEN": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said: list[str] = []
    known = threading.Event()

    def read() -> None:
        """Read to the end, so that the command never waits for a reader."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                said.append(line)
                if line.rstrip().endswith("/dashboard"):
                    known.set()
        known.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert known.wait(60), said
        found = re.search(
            r"Dashboard at (http://127\.0\.0\.1:\d+/dashboard)$", "".join(said), re.MULTILINE
        )
        assert found, said
        yield found[1]
    finally:
        (tmp_path / "end").touch()
        process.send_signal(signal.SIGINT)
        process.wait(30)
        reader.join()


def test_the_printed_address_opens_with_the_token(printed: str, open_page: Open):
    page = open_page(printed, allow=(REFUSED,))
    state(page, "unauthorized")
    enter(page, SECRET)
    state(page, "live")
    visit(page, "Workers")
    expect(page.get_by_role("alert")).to_have_count(0)
