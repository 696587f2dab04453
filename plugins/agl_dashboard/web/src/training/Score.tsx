import type { ReactNode } from "react";
import type { Batch } from "../api/client";
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
