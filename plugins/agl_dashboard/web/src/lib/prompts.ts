// The prompt templates of snapshots, with the scores of the rollouts that ran with them, as a tree.
import type { Snapshot, SnapshotScore } from "../api/client";
import { type Run, isObject, isRecord } from "./runs";

export interface PromptVersion {
  id: string;
  name: string;
  text: string;
  time: number;
  /** What rollouts score with it, by mode: the modes have other tasks. */
  scores: SnapshotScore[];
  /** Whether the algorithm of its run says so; a high mean of few tasks says little. */
  best: boolean;
  /** The version that it was edited from; null for the first. */
  parent: PromptVersion | null;
  /** Number of its ancestors. */
  depth: number;
}

/**
 * Return the versions of a run's prompts; each follows its parent, with its own edits below it.
 *
 * An evaluation publishes the prompts that it compares again. Their scores are those of the same text.
 */
export function promptVersions(run: string, used: ReadonlySet<string>, snapshots: Snapshot[], scores: SnapshotScore[], runs: Run[]): PromptVersion[] {
  const best = new Set(runs.map(bestOf));
  const parents = parentsOf(runs);
  const found: PromptVersion[] = [];
  for (const snapshot of snapshots) {
    if (isRecord(snapshot)) continue;
    for (const [name, resource] of Object.entries(snapshot.resources)) {
      const fields = resource as Record<string, unknown>;
      if (fields["resource_type"] !== "prompt_template" || typeof fields["template"] !== "string") continue;
      found.push({
        id: snapshot.resources_id,
        name,
        text: fields["template"],
        time: snapshot.create_time,
        scores: scores.filter(({ resources_id, reward_mean }) => resources_id === snapshot.resources_id && reward_mean != null),
        best: best.has(snapshot.resources_id),
        parent: null,
        depth: 0,
      });
    }
  }
  found.sort((a, b) => a.time - b.time);
  const all = found.splice(0);
  for (const version of all) {
    if (used.has(version.id) || (run !== "" && seriesOf(version.id) === run)) found.push(version);
  }
  for (const version of found) {
    const twins = all.filter((other) => other !== version && !isOfSearch(other.id) && other.name === version.name && other.text === version.text);
    version.scores = onePerMode([version, ...twins].flatMap((each) => each.scores));
  }
  const byKey = new Map(found.map((version) => [`${version.name} ${version.id}`, version]));
  const newest = new Map<string, PromptVersion>();
  for (const version of found) {
    const told = parents.get(version.id);
    // If the algorithm names no parent, a version counts as an edit of the one before it.
    const series = `${version.name} ${seriesOf(version.id)}`;
    version.parent = (told === undefined ? newest.get(series) : byKey.get(`${version.name} ${told}`)) ?? null;
    newest.set(series, version);
  }
  return inTreeOrder(found);
}

/** The run of a snapshot that a run made; empty for others. */
function seriesOf(id: string): string {
  return id.includes("/") ? id.slice(0, id.indexOf("/")) : "";
}

/** Whether a search made a snapshot; an evaluation names what it publishes "eval-…" in its run. */
function isOfSearch(id: string): boolean {
  const series = seriesOf(id);
  return series !== "" && !id.startsWith(`${series}/eval-`);
}

function inTreeOrder(found: PromptVersion[]): PromptVersion[] {
  const children = new Map<PromptVersion | null, PromptVersion[]>();
  for (const version of found) children.set(version.parent, [...(children.get(version.parent) ?? []), version]);
  const ordered: PromptVersion[] = [];
  const waiting = (children.get(null) ?? []).toReversed();
  for (let version = waiting.pop(); version; version = waiting.pop()) {
    version.depth = version.parent ? version.parent.depth + 1 : 0;
    ordered.push(version);
    waiting.push(...(children.get(version) ?? []).toReversed());
  }
  return ordered;
}

/** Of the scores of one text in each mode the one of most tasks: modes and evaluations are never pooled. */
function onePerMode(scores: SnapshotScore[]): SnapshotScore[] {
  const found = new Map<string, SnapshotScore>();
  for (const score of scores) {
    const other = found.get(score.mode ?? "");
    if (!other || score.tasks > other.tasks) found.set(score.mode ?? "", score);
  }
  return [...found.values()].toSorted(byMode);
}

/** The first version that the chosen one goes back to, and the chosen one; null where there is no gain to tell. */
export function firstAndChosen(versions: PromptVersion[]): [first: PromptVersion, chosen: PromptVersion] | null {
  const chosen = versions.find(({ best }) => best);
  let first = chosen;
  while (first?.parent) first = first.parent;
  return chosen && first && first !== chosen ? [first, chosen] : null;
}

const MODES = ["test", "val", "train"];
const byMode = (a: SnapshotScore, b: SnapshotScore): number => MODES.indexOf(a.mode ?? "") - MODES.indexOf(b.mode ?? "");

/** The id of the snapshot that a run takes for the best: its state names it, or else it ended with it. */
export function bestOf({ name, state, result }: Run): string | null {
  const version = isObject(state) ? state["best"] : null;
  return typeof version === "string" ? `${name}/${version}` : result;
}

/** The parents that prompt searches write into their state; "" for one that has none. */
function parentsOf(runs: Run[]): Map<string, string> {
  const parents = new Map<string, string>();
  for (const { name, state } of runs) {
    const history = isObject(state) ? state["history"] : null;
    if (!Array.isArray(history)) continue;
    for (const candidate of history as unknown[]) {
      if (!isObject(candidate) || typeof candidate["version"] !== "string") continue;
      const parent = candidate["parent"];
      parents.set(`${name}/${candidate["version"]}`, typeof parent === "string" ? `${name}/${parent}` : "");
    }
  }
  return parents;
}
