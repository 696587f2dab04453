"""``python3 dev.py ci``: plans a gate, runs it, and records that it passed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import chain

from devtools import debian, prometheus, rescued
from devtools.gate import changes, plan, recording, runs, steps, test_map
from devtools.gate.job import Job, debts_of, duration, table_of
from devtools.gate.parts import Tree
from devtools.gate.selection import ONLY_FOR, Context, choose, not_due
from devtools.process import ROOT, Interrupted, say

EPILOG = """\
Without options, runs what the changes since the last gate can break, and deep suites while there
is time. A gate that passes is written to .ci/full_run.toml; commit that file. A full run is written
with what failed in it, or was left at Ctrl+C; the next gates require that, and --rest runs what
they have not.

  python3 dev.py ci --plan           what would run, and why
  python3 dev.py ci --plan --tests   and each chosen test file with its reason
"""


def main(arguments: Sequence[str], commands: Mapping[str, steps.Step]) -> None:
    """Run ``dev.py ci``.

    Args:
        arguments: The command line after ``ci``.
        commands: The commands of ``dev.py``, by name.
    """
    options = _parser().parse_args(arguments)
    kept = runs.read()
    base = options.since or (kept.gate.commit if kept.gate else "")
    everything = options.all or options.rest
    if not everything and not (base and changes.is_known(base)):
        if options.since:
            sys.exit(f"{base} is not a commit of this clone")
        say(f"the last gate's commit {base or '(none)'} is not in this clone: running everything")
        everything = True
    found = changes.Changes("", ()) if everything else changes.since(base)
    context = Context(Tree(ROOT, changes.tracked()), test_map.read(), found)
    if everything:
        whole = _rest(context, kept) if options.rest else plan.everything(context, kept)
        groups, owed = (whole,), ()
        lines = ["everything:", *table_of(groups[0])]
    else:
        planned = plan.gate(context, kept, 60 * options.minutes)
        groups, owed = (planned.required, planned.rotation), tuple(debts_of(planned.owed))
        lines = list(plan.lines_of(planned, base))
        if found.worded:
            lines.append(f"not tested: {len(found.worded)} files that differ only in comments")
        for test in not_due(context):
            lines.append(f"not due: {test}, which is for {', '.join(ONLY_FOR[test][:2])}")
        if options.tests:
            lines += [f"  later: {job.name}" for job in planned.later]
            lines += [f"  {test}: {reason.found}" for test, reason in planned.chosen.items()]
    say("\n".join(lines))
    if options.plan:
        return
    commit = changes.git("rev-parse", "--short=12", "HEAD").strip()
    unrecorded = _why_unrecorded(options)
    if options.passed:
        if unrecorded:
            sys.exit(f"not recorded: {unrecorded}")
        known = {job.name: job.seconds for group in groups for job in group if job.seconds}
        run = runs.Run(commit, date.today(), duration(chain(*groups)))
        ran = _by_suite(groups, known, kept)
        write = kept.with_full_run if everything else partial(kept.with_gate, owed=owed)
        _write(write(run, ran, estimated=ran))
        return
    debian.install()
    prometheus.install()
    missing = [*debian.missing(), *prometheus.missing()]
    start = time.monotonic()
    interrupted = False
    with rescued.noted() as second_tries:
        try:
            durations, failed = steps.run(groups, commands)
        except Interrupted as error:
            durations, failed, interrupted = error.durations, error.failed, True
    # CI reads a closing line like this one.
    passed = {name: took for name, took in durations.items() if name not in failed}
    say(f"jobs: {len(passed)} passed, {len(failed)} failed")
    for test in second_tries:
        say(f"passed at the second try: {test}")
    before = kept.full.seconds if options.rest and kept.full else 0.0
    run = runs.Run(commit, date.today(), before + time.monotonic() - start)
    ran = _by_suite(groups, passed, kept)
    if missing:
        unrecorded = f"without {', '.join(missing)}, tests were left out"
    elif not unrecorded and _differs_from(commit):
        unrecorded = f"the tree differs from {commit}, on which the run began"
    if unrecorded:
        say(f"not recorded: {unrecorded}")
    elif everything:
        bad = [job for job in chain(*groups) if job.name in failed]
        # It ended, and was not left.
        covers = [job for job in bad if job.step == "cover" and job.name in durations]
        if covers:
            run = replace(run, tests=tuple(recording.failed_tests()))
            for test in _left_out(context, kept, run.tests):
                say(f"no gate has chosen {test}: write it under [[missed]], with the rule to add")
        elif kept.full and any(job.step == "wheels" for job in bad):
            run = replace(run, tests=kept.full.tests)
        debts, tested = debts_of(bad), debts_of(covers)
        _write(kept.with_full_run(run, ran, debts, tested, estimated=ran.keys() - passed))
    elif not failed:
        _write(kept.with_gate(run, ran, owed, estimated=ran.keys() - passed))
    if failed:
        sys.exit(f"{'interrupted: left' if interrupted else 'failed'}: {', '.join(failed)}")


def _left_out(context: Context, kept: runs.Record, failed: Collection[str]) -> Collection[str]:
    """Return the failed test files that a gate of the changes since the last one leaves out."""
    if kept.gate is None or not changes.is_known(kept.gate.commit):
        return ()
    since = changes.since(kept.gate.commit)
    return sorted({*failed} - choose(replace(context, changes=since)).keys())


def _rest(context: Context, kept: runs.Record) -> tuple[Job, ...]:
    """Return what ends the last full run, if gates have tested all that changed since.

    Raises:
        SystemExit: Nothing is left of it, or more than the record has changed since the last gate.
    """
    if kept.gate is None or kept.full is None or not kept.full.failed:
        sys.exit("nothing is left of the last full run")
    gate = kept.gate.commit
    if not changes.is_known(gate) or set(changes.since(gate).files) - {runs.NAME}:
        sys.exit(f"the tree differs from {gate}, the last gate's: run a gate first, or use --all")
    return plan.rest(context, kept)


def _why_unrecorded(options: argparse.Namespace) -> str:
    """Return why a run says nothing about this commit compared with the last gate's."""
    if os.environ.get("CI"):
        return "CI's clone is thrown away; run `dev.py ci --passed` where you work"
    if options.since:
        return "the changes since another commit were tested, not those since the last gate"
    if changes.git("status", "--porcelain"):
        return "the working tree differs from its commit"
    return ""


def _differs_from(commit: str) -> bool:
    """Whether the tree has changed during a run; the record of the tests is written by it."""
    if changes.git("rev-parse", "--short=12", "HEAD").strip() != commit:
        return True
    lines = changes.git("status", "--porcelain").splitlines()
    return any(not line[3:].startswith(".ci/") for line in lines)


def _write(record: runs.Record) -> None:
    runs.write(record)
    say(f"wrote {runs.FILE.relative_to(ROOT)}: commit its folder")


def _by_suite(
    groups: Sequence[Sequence[Job]], durations: Mapping[str, float], kept: runs.Record
) -> dict[str, float]:
    """Return the known durations of jobs, and those of the suites that they cover.

    A suite that ran as a part of another job keeps its last duration, or gets its share.
    """
    found: dict[str, float] = {}
    for job in chain(*groups):
        if job.name in durations:
            for name in job.covers:
                found[name] = kept.seconds(name) or durations[job.name] / len(job.covers)
            found[job.name] = durations[job.name]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "dev.py ci",
        description="The gate of a change.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="run everything")
    parser.add_argument(
        "--rest",
        action="store_true",
        help="end the last full run: run what failed or was left, and no gate has run since",
    )
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
        help="time up to which deep suites are added (%(default)s); 0 adds none",
    )
    parser.add_argument(
        "--passed",
        action="store_true",
        help="run nothing: record that this commit's gate passed elsewhere, as in CI",
    )
    return parser
