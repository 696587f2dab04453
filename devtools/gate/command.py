"""``python3 dev.py ci``: plans a gate, runs it, and records that it passed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import date

from devtools import debian, prometheus
from devtools.gate import changes, jobs, plan, runs, test_map
from devtools.gate.parts import Tree
from devtools.gate.selection import Context
from devtools.process import ROOT, output_of, say

EPILOG = """\
Without options, runs what the changes since the last gate can break, and deep suites while there
is time. A gate or a full run that passes is written to .ci/full_run.toml; commit that file.

  python3 dev.py ci --plan           what would run, and why
  python3 dev.py ci --plan --tests   and each chosen test file with its reason
"""


def main(arguments: Sequence[str], commands: Mapping[str, jobs.Step]) -> None:
    """Run ``dev.py ci``.

    Args:
        arguments: What follows ``ci`` on the command line.
        commands: The commands of ``dev.py``, by name.
    """
    options = _parser().parse_args(arguments)
    kept = runs.read()
    base = options.since or (kept.gate.commit if kept.gate else "")
    if not options.all and not (base and changes.is_known(base)):
        say(f"the last gate's commit {base or '(none)'} is not in this clone: running everything")
        options.all = True
    found = changes.Changes("", ()) if options.all else changes.since(base)
    context = Context(Tree(ROOT, changes.tracked()), test_map.read(), found)
    if options.all:
        groups = (plan.everything(context, kept),)
        say("everything:")
        lines = list(plan.table_of(groups[0]))
    else:
        planned = plan.gate(context, kept, 60 * options.minutes)
        groups = (planned.required, planned.rotation)
        lines = list(plan.lines_of(planned, base))
        if options.tests:
            lines += [f"  later: {job.name}" for job in planned.later]
            lines += [f"  {test}: {reason.found}" for test, reason in planned.chosen.items()]
    say("\n".join(lines))
    if options.plan:
        return
    if options.passed:
        if output_of("git", "status", "--porcelain"):
            sys.exit("the working tree differs from its commit: commit or stash the changes first")
        estimates = {job.name: job.seconds or 0.0 for group in groups for job in group}
        runs.write(kept.with_gate(_head(), date.today(), _by_suite(groups, estimates, kept)))
        return
    _run(groups, commands, kept, everything=options.all)


def _run(
    groups: Sequence[Sequence[plan.Job]],
    commands: Mapping[str, jobs.Step],
    kept: runs.Record,
    *,
    everything: bool,
) -> None:
    debian.install()
    prometheus.install()
    start = time.monotonic()
    durations, failed = jobs.run(groups, commands)
    # CI reads a closing line like this one.
    say(f"jobs: {len(durations) - len(failed)} passed, {len(failed)} failed")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    durations = _by_suite(groups, durations, kept)
    if everything:
        seconds = time.monotonic() - start
        after = kept.with_full_run(_head(), date.today(), seconds, durations)
    else:
        after = kept.with_gate(_head(), date.today(), durations)
    if not os.environ.get("CI"):  # a clone that nobody commits from
        runs.write(after)
        say(f"wrote {runs.FILE.relative_to(ROOT)}: commit it")


def _by_suite(
    groups: Sequence[Sequence[plan.Job]], durations: Mapping[str, float], kept: runs.Record
) -> dict[str, float]:
    """Return the durations of jobs and of the suites that they cover.

    A suite that ran as a part of another job keeps its last duration, or gets its share.
    """
    found: dict[str, float] = {}
    for job in (job for group in groups for job in group):
        for name in job.covers:
            found[name] = kept.seconds(name) or durations[job.name] / len(job.covers)
        found[job.name] = durations[job.name]
    return found


def _head() -> str:
    return output_of("git", "rev-parse", "--short=12", "HEAD").strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "dev.py ci",
        description="The gate of a change.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="run everything")
    parser.add_argument("--plan", action="store_true", help="print what would run, and end")
    parser.add_argument(
        "--tests",
        action="store_true",
        help="print each chosen test file, and what is left for later",
    )
    parser.add_argument(
        "--since", metavar="COMMIT", help="compare with this commit instead of the last gate's"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=plan.BUDGET_MINUTES,
        metavar="N",
        help="time up to which deep suites are added (%(default)s); 0 is none of them",
    )
    parser.add_argument(
        "--passed",
        action="store_true",
        help="run nothing: record that this commit's gate passed elsewhere, as in CI",
    )
    return parser
