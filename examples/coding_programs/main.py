"""Lets coding agents from npm and PyPI solve a small task behind the proxy.

python examples/coding_programs/main.py codex claude-code
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from typing import Any

import agl_core as agl
from agl_core import semconv
from agl_core.algorithm import RolloutOutcome
from agl_scripted import ModelEndpoint, real_or_scripted
from program_agent import CACHE, TASK, solve
from program_install import InstallError, install
from program_model import answer
from programs import PROGRAMS


def installed(names: list[str]) -> list[str]:
    """Install programs; return the names of those that are there."""
    found: list[str] = []
    for name in names:
        print(f"installing {name} {PROGRAMS[name].version} ...", file=sys.stderr)
        try:
            install(PROGRAMS[name], CACHE)
        except InstallError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def measure(model: ModelEndpoint, names: list[str]) -> list[dict[str, Any]]:
    """Run the task with each program; return a row per program."""
    trainer = agl.Trainer(strategy="shm", n_runners=2, proxy=model.behind_proxy())
    outcome = trainer.evaluate(solve, [{**TASK, "program": name} for name in names])
    return [
        {"program": name, "protocol": PROGRAMS[name].protocol, **summary(one)}
        for name, one in zip(names, outcome, strict=True)
    ]


def summary(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the reward of a rollout, and its calls, their tokens and what the proxy left out."""
    calls = [span.attributes for span in outcome.spans if span.name == semconv.SPAN_MODEL_CALL]
    used = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    tokens = sum(int(str(call.get(name, 0))) for call in calls for name in used)
    lost: set[str] = set()
    for call in calls:
        named: Any = call.get("agl.proxy.lost", ())
        lost |= set(named)
    left_out = sorted(lost)
    return {"reward": outcome.reward, "calls": len(calls), "tokens": tokens, "lost": left_out}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run coding agents from npm and PyPI.")
    parser.add_argument("programs", nargs="*", choices=[*PROGRAMS, []], help="default: all")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    options = parser.parse_args()
    logging.basicConfig(level=os.environ.get("LOGLEVEL", "WARNING"))
    names = installed(options.programs or list(PROGRAMS))
    if not names:
        sys.exit("no program could be installed")
    started = time.monotonic()
    with real_or_scripted(answer, "gpt-5.5", provider="hosted_vllm") as model:
        rows = measure(model, names)
    if options.json:
        print(*map(json.dumps, rows), sep="\n")
        return
    print(f"{len(rows)} rollouts in {time.monotonic() - started:.1f} s\n")
    print("program         protocol   reward  calls  tokens  left out")
    for row in rows:
        reward = "failed" if row["reward"] is None else f"{row['reward']:6.2f}"
        lost = ", ".join(row["lost"]) or "-"
        print(
            f"{row['program']:15} {row['protocol']:10} {reward} {row['calls']:6} "
            f"{row['tokens']:7}  {lost}"
        )


if __name__ == "__main__":
    main()
