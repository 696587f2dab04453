import type { ReactNode } from "react";
import type { Batch, PairedGain } from "../api/client";
import { Reward } from "../components/parts";
import { count, interval, reward } from "../lib/format";

interface Scored {
  reward_mean: number | null;
  reward_low: number | null;
  reward_high: number | null;
}

/** A mean reward over tasks, failures of the agent included, with its interval. */
export function Score({ of }: { of: Scored }) {
  return (
    <span>
      <Reward value={of.reward_mean} text={reward(of.reward_mean)} />
      <span className="muted"> {interval(of.reward_low, of.reward_high)}</span>
    </span>
  );
}

/** A gain, paired by task; it is shown if its whole interval is above 0. */
export function PairedGainText({ of }: { of: PairedGain }) {
  if (of.gain_mean == null || of.gain_low == null || of.gain_high == null) return <span className="muted">no task in common</span>;
  return (
    <span>
      {signed(of.gain_mean)}
      <span className="muted">
        {` [${signed(of.gain_low)}, ${signed(of.gain_high)}] ${count(of.tasks)} tasks${of.gain_low > 0 ? "" : ", not shown"}`}
      </span>
    </span>
  );
}

function signed(value: number): string {
  return `${value < 0 ? "−" : "+"}${reward(Math.abs(value))}`;
}

const TASKS: Record<string, string> = { train: "training", val: "validation", test: "test" };

/** What the tasks of a mode are called. */
export function tasksOf(mode: string | null): string {
  return `${TASKS[mode ?? ""] ?? ""} tasks`.trim();
}

/** A score, and what it is of. */
export function ScoreOnTasks({ of }: { of: Scored & { mode: string | null; tasks: number } }) {
  return (
    <span>
      <Score of={of} />
      <span className="muted">{` on ${count(of.tasks)} ${tasksOf(of.mode)}`}</span>
    </span>
  );
}

/** The last batch with a reward of each mode as facts: training, validation and test are never compared. */
export function lastScores(batches: Batch[]): [string, ReactNode][] {
  const last = new Map(batches.filter(({ reward_mean }) => reward_mean != null).map((batch) => [batch.mode, batch]));
  return [...last.values()].map((batch) => [`Last ${batch.mode ?? "batch"}`, <Score of={batch} />]);
}
