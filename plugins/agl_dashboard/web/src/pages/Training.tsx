import { Progress } from "@base-ui/react/progress";
import { type ReactNode, useMemo } from "react";
import type { Batch, BatchCost } from "../api/client";
import { useCosts, useSnapshots, useTraining } from "../api/queries";
import { Chart, type Line } from "../components/Chart";
import { Empty, Facts, Problem } from "../components/parts";
import { NONE, ago, count, duration, metric, preview, reward } from "../lib/format";
import { promptVersions } from "../lib/prompts";
import { runsOf } from "../lib/runs";
import { useUrl } from "../lib/url";
import { Gain } from "../training/Gain";
import { Groups } from "../training/Groups";
import { Metrics } from "../training/Metrics";
import { Prompts } from "../training/Prompts";
import { Score, lastScores } from "../training/Score";

export default function TrainingPage() {
  const [url, change] = useUrl();
  const training = useTraining();
  const snapshots = useSnapshots();
  const runs = useMemo(() => runsOf(snapshots.data ?? []), [snapshots.data]);
  const names = useMemo(() => {
    const found = [...new Set([...(training.data?.batches ?? []).map(({ run }) => run).reverse(), ...runs.map(({ name }) => name)])];
    return found.toSorted((a, b) => Number(a === "") - Number(b === "")); // what has no name is no run
  }, [training.data, runs]);
  const run = url.get("run") ?? names[0] ?? "";
  const batches = useMemo(() => (training.data?.batches ?? []).filter((batch) => batch.run === run), [training.data, run]);
  const step = url.get("batch");
  const costs = useCosts(run);
  if (!training.data) {
    return (
      <section className="page">
        <h1>Training</h1>
        <Problem error={training.error} />
        {training.data === null && <Empty>This server is of an older version and has no summary of training.</Empty>}
        {training.isPending && <Empty>Reading rewards…</Empty>}
      </section>
    );
  }
  const checkpoint = runs.find(({ name }) => name === run);
  const history = checkpoint?.history;
  const used = new Set(batches.flatMap(({ resources_ids }) => resources_ids));
  const versions = promptVersions(run, used, snapshots.data ?? [], training.data.snapshots, runs);
  const finished = batches.reduce((total, batch) => total + batch.finished, 0);
  const rollouts = batches.reduce((total, batch) => total + batch.rollouts, 0);
  return (
    <section className="page">
      <div className="page-head">
        <h1>Training</h1>
        {names.length > 0 && (
          <label className="select">
            Run
            <select value={run} onChange={(event) => change({ run: event.target.value, batch: null, prompt: null })}>
              {names.map((name) => (
                <option key={name} value={name}>
                  {name || "without a name"}
                </option>
              ))}
            </select>
          </label>
        )}
        {!training.data.complete && (
          <Progress.Root className="progress muted" value={training.data.read} max={training.data.total}>
            <Progress.Label>
              Reading rewards: {count(training.data.read)} of {count(training.data.total)}
            </Progress.Label>
            <Progress.Track className="progress-track">
              <Progress.Indicator className="progress-bar" />
            </Progress.Track>
          </Progress.Root>
        )}
      </div>
      <Problem error={training.error ?? snapshots.error} />
      {batches.length === 0 ? (
        <Empty>No rollouts yet. Each batch of a run becomes a point of the curve.</Empty>
      ) : (
        <>
          <Facts
            items={[
              ["Batches", count(batches.length)],
              ["Rollouts", `${count(finished)} of ${count(rollouts)} finished`],
              ...lastScores(batches),
              ...costFacts(batches, costs),
              ...Object.entries(checkpoint?.metrics ?? {}).map(([name, value]): [string, string] => [preview(name, 30), metric(value)]),
            ]}
          />
          <Gain versions={versions} />
          {batches.some(({ mode }) => mode !== "test") && (
            <>
              <h2>Reward</h2>
              <Curves batches={batches} onPick={(batch) => change({ batch })} />
            </>
          )}
        </>
      )}
      {history && history.series.length > 0 && <Metrics history={history} />}
      {batches.length > 0 && (
        <>
          <h2>Batches</h2>
          <Batches batches={batches} costs={costs} chosen={step} onPick={(batch) => change({ batch: batch === step ? null : batch })} />
          {step !== null && <Groups run={run} batch={step} />}
        </>
      )}
      {versions.length > 0 && (
        <>
          <h2>Prompts</h2>
          <Prompts versions={versions} />
        </>
      )}
    </section>
  );
}

type Costs = ReturnType<typeof useCosts>;

/** What a run costs. Of a large run some rollouts of each batch were read; the rest is taken to cost the same. */
function costFacts(batches: Batch[], costs: Costs): [string, ReactNode][] {
  let [calls, taken, given, isKnown, isWhole] = [0, 0, 0, false, true];
  for (const batch of batches) {
    const cost = costs?.get(batch.batch);
    if (!cost || cost.rollouts === 0) continue;
    const share = Math.max(1, batch.finished / cost.rollouts);
    isWhole &&= share === 1;
    isKnown ||= cost.input_tokens != null || cost.output_tokens != null;
    calls += cost.model_calls * share;
    taken += (cost.input_tokens ?? 0) * share;
    given += (cost.output_tokens ?? 0) * share;
  }
  if (!isKnown && calls === 0) return [];
  const about = isWhole ? "" : "about ";
  return [
    ["Model calls of the agent", `${about}${count(Math.round(calls))}`],
    ["Tokens of the agent", isKnown ? `${about}${count(Math.round(taken))} → ${count(Math.round(given))}` : NONE],
  ];
}

/** Tokens of a rollout of a batch, on average. */
function tokensEach(cost: BatchCost | undefined): number | null {
  if (!cost || cost.rollouts === 0 || (cost.input_tokens == null && cost.output_tokens == null)) return null;
  return Math.round(((cost.input_tokens ?? 0) + (cost.output_tokens ?? 0)) / cost.rollouts);
}

function Curves({ batches, onPick }: { batches: Batch[]; onPick: (batch: string) => void }) {
  const [x, lines] = useMemo((): [number[], Line[]] => {
    const modes = [...new Set(batches.map(({ mode }) => mode ?? "rollouts"))];
    return [
      batches.map((_, index) => index),
      modes.map((mode) => {
        const own = batches.map((batch) => ((batch.mode ?? "rollouts") === mode ? batch : null));
        return {
          label: mode,
          values: own.map((batch) => batch?.reward_mean ?? null),
          band: [own.map((batch) => batch?.reward_low ?? null), own.map((batch) => batch?.reward_high ?? null)],
        };
      }),
    ];
  }, [batches]);
  const pick = (index: number): void => {
    const batch = batches[index];
    if (batch) onPick(batch.batch);
  };
  return <Chart label="Mean reward of each batch" x={x} lines={lines} onPick={pick} />;
}

function Batches({ batches, costs, chosen, onPick }: { batches: Batch[]; costs: Costs; chosen: string | null; onPick: (batch: string) => void }) {
  const shown = batches.toReversed().slice(0, 500);
  const hasLost = batches.some(({ lost }) => lost > 0);
  const low = Math.min(...batches.map(({ reward_min }) => reward_min ?? Infinity));
  const high = Math.max(...batches.map(({ reward_max }) => reward_max ?? -Infinity));
  return (
    <div className="table-scroll" tabIndex={0} role="region" aria-label="Batches">
      <table className="table">
        <thead>
          <tr>
            <th scope="col">Batch</th>
            <th scope="col">Mode</th>
            <th scope="col" className="num">Rollouts</th>
            <th scope="col" className="num">Failed</th>
            {hasLost && <th scope="col" className="num">Lost</th>}
            <th scope="col" className="num">Tasks</th>
            <th scope="col" className="num">Reward, 95 % interval</th>
            <th scope="col">Spread</th>
            <th scope="col" className="num">Tokens each</th>
            <th scope="col" className="num">Took</th>
            <th scope="col" className="num">Started</th>
          </tr>
        </thead>
        <tbody>
          {shown.map((batch) => (
            <tr key={batch.batch} data-current={batch.batch === chosen || undefined}>
              <th scope="row">
                <button type="button" className="link" aria-pressed={batch.batch === chosen} onClick={() => onPick(batch.batch)}>
                  {preview(batch.batch, 60) || "without a name"}
                </button>
              </th>
              <td>{batch.mode ?? NONE}</td>
              <td className="num">
                {count(batch.finished)}/{count(batch.rollouts)}
              </td>
              <td className="num">{batch.failed ? <span className="bad-text">{count(batch.failed)}</span> : "0"}</td>
              {hasLost && <td className="num" title="Failed by the proxy or the store, not by the agent; they do not count">{count(batch.lost)}</td>}
              <td className="num">{count(batch.tasks)}</td>
              <td className="num">
                <Score of={batch} />
              </td>
              <td>
                <Spread batch={batch} low={low} high={high} />
              </td>
              <td className="num">{count(tokensEach(costs?.get(batch.batch)))}</td>
              <td className="num">{duration(batch.end_time ? batch.end_time - batch.start_time : null)}</td>
              <td className="num">{ago(batch.start_time)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The smallest, the mean and the largest reward of a batch, on the scale of all batches. */
function Spread({ batch, low, high }: { batch: Batch; low: number; high: number }) {
  const { reward_min: min, reward_max: max, reward_mean: mean } = batch;
  if (min == null || max == null || mean == null) return <span className="muted">{NONE}</span>;
  // Failures count in the mean, which may lie below the smallest reward.
  const at = (value: number): number => (high > low ? Math.max(0, ((value - low) / (high - low)) * 100) : 50);
  return (
    <span className="spread" role="img" aria-label={`${reward(min)} to ${reward(max)}`}>
      <span className="range" style={{ left: `${at(min)}%`, width: `max(${at(max) - at(min)}%, 2px)` }} />
      <span className="mean" style={{ left: `${at(mean)}%` }} />
    </span>
  );
}
