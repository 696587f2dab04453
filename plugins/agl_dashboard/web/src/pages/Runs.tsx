import type { ReactNode } from "react";
import { Link } from "react-router";
import type { Batch } from "../api/client";
import { useSnapshots, useTraining } from "../api/queries";
import { Empty, Facts, Json, Problem, Status } from "../components/parts";
import { ago, bounded, count, duration, metric, preview, time } from "../lib/format";
import { type PromptVersion, promptVersions } from "../lib/prompts";
import { type History, type Run, runsOf, statusOf } from "../lib/runs";
import { Score, lastScores, tasksOf } from "../training/Score";

export function RunsPage() {
  const snapshots = useSnapshots();
  const training = useTraining();
  const runs = runsOf(snapshots.data ?? []);
  return (
    <section className="page">
      <div className="page-head">
        <h1>Runs</h1>
        <span className="muted">{count(runs.length)}</span>
      </div>
      <Problem error={snapshots.error} />
      {snapshots.data && runs.length === 0 && (
        <Empty>No named runs. A run with a name keeps its state in the store and can be resumed: agl train FILE --run NAME</Empty>
      )}
      {runs.map((run) => (
        <RunCard
          key={run.name}
          run={run}
          batches={(training.data?.batches ?? []).filter((batch) => batch.run === run.name)}
          versions={promptVersions(run.name, new Set(), snapshots.data ?? [], training.data?.snapshots ?? [], runs)}
        />
      ))}
    </section>
  );
}

function RunCard({ run, batches, versions }: { run: Run; batches: Batch[]; versions: PromptVersion[] }) {
  const { history } = run;
  const chosen = versions.find(({ best }) => best);
  const rollouts = batches.reduce((total, batch) => total + batch.rollouts, 0);
  const finished = batches.reduce((total, batch) => total + batch.finished, 0);
  const status = statusOf(run);
  return (
    <article className="card">
      <div className="page-head">
        <h2>{run.name}</h2>
        <Status value={status} />
        <Link to={`/training?run=${encodeURIComponent(run.name)}`}>Training</Link>
      </div>
      {history?.error && status === "failed" && (
        <p className="notice bad" dir="auto">
          {bounded(history.error, 2000)}
        </p>
      )}
      <Facts
        items={[
          ["Began", time(run.began)],
          ...(history?.began && history.ended ? [["Took", duration(history.ended - history.began)] as [string, string]] : []),
          ["Saved", ago(Math.max(run.saved, history?.saved ?? 0))],
          ["Checkpoints", count(run.version)],
          ["Batches", count(batches.length)],
          ["Rollouts", `${count(finished)} of ${count(rollouts)} finished`],
          ...(chosen?.scores.length ? chosen.scores.map((score): [string, ReactNode] => [`Chosen prompt on ${tasksOf(score.mode)}`, <Score of={score} />]) : lastScores(batches)),
          ...Object.entries(run.metrics).map(([name, value]): [string, string] => [preview(name, 30), metric(value)]),
        ]}
      />
      {history && <Parts history={history} run={run.name} />}
      {!run.finished && status !== "running" && (
        <p>
          {history?.command ? (
            <>
              Resume with <code>{bounded(history.command, 2000)}</code>
            </>
          ) : (
            <>
              Resume with <code>agl train FILE --run {run.name} --resume</code>, or run the program with <code>Trainer(run="{run.name}")</code> again
            </>
          )}
        </p>
      )}
      <details>
        <summary>State</summary>
        <Json value={run.state} label={`State of ${run.name}`} />
      </details>
    </article>
  );
}

/** What a run was composed of: each component with its options. */
function Parts({ history, run }: { history: History; run: string }) {
  return (
    <div className="table-scroll" tabIndex={0} role="region" aria-label={`Parts of ${run}`}>
      <table className="table">
        <thead>
          <tr>
            <th scope="col">Part</th>
            <th scope="col">Component</th>
            <th scope="col">Options</th>
          </tr>
        </thead>
        <tbody>
          {history.parts.map(([name, type, config]) => (
            <tr key={name}>
              <th scope="row">{name.replace(/_/g, " ")}</th>
              <td className="mono">{preview(type, 60)}</td>
              <td>
                {config !== undefined && (
                  <details>
                    <summary>{preview(config, 70)}</summary>
                    <Json value={config} label={`Options of ${name} of ${run}`} />
                  </details>
                )}
              </td>
            </tr>
          ))}
          <tr>
            <th scope="row">runners</th>
            <td>{count(history.runners)}</td>
            <td className="muted">
              {preview(history.mode, 20)}, agl {preview(history.version, 20)}
            </td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}
