// What the store keeps of named runs: `run:<name>`, the checkpoint of the algorithm, and
// `history:<name>`, the parts of the run, its metrics over steps, and how it ended.
import type { Snapshot } from "../api/client";
import { now } from "./clock";

export interface History {
  mode: string;
  status: string;
  error: string | null;
  command: string;
  version: string;
  began: number | null;
  ended: number | null;
  saved: number;
  runners: number | null;
  parts: [name: string, type: string, config: unknown][];
  steps: number[];
  series: [name: string, values: (number | null)[]][];
}

export interface Run {
  name: string;
  finished: boolean;
  metrics: Record<string, number>;
  began: number;
  saved: number;
  version: number;
  state: unknown;
  /** Id of the snapshot that a finished run ended with. */
  result: string | null;
  /** Null for a run of an older version. */
  history: History | null;
}

const RUN = "run:";
const HISTORY = "history:";
const SILENT_SECONDS = 90; // a history is written at least every 30 s

/** Whether a snapshot is a record, such as the state of a run, and nothing that agents receive. */
export function isRecord({ resources }: Snapshot): boolean {
  const found = Object.values(resources as Record<string, Record<string, unknown>>);
  return found.length > 0 && found.every((resource) => resource["resource_type"] === "checkpoint");
}

export function runsOf(snapshots: Snapshot[]): Run[] {
  const histories = new Map(snapshots.filter(({ resources_id }) => resources_id.startsWith(HISTORY)).map((each) => [each.resources_id.slice(HISTORY.length), each]));
  const runs: Run[] = [];
  for (const snapshot of snapshots) {
    const checkpoint = checkpointOf(snapshot, "checkpoint");
    if (!snapshot.resources_id.startsWith(RUN) || !checkpoint) continue;
    const name = snapshot.resources_id.slice(RUN.length);
    const history = histories.get(name);
    runs.push({
      name,
      finished: checkpoint["finished"] === true,
      metrics: numbers(checkpoint["metrics"]),
      began: snapshot.create_time,
      saved: snapshot.update_time,
      version: snapshot.version,
      state: checkpoint["state"],
      result: typeof checkpoint["resources_id"] === "string" ? checkpoint["resources_id"] : null,
      history: history ? historyOf(history) : null,
    });
  }
  return runs.toSorted((a, b) => b.began - a.began);
}

/** How a run stands: finished, failed, interrupted, running, lost (it says nothing any more). */
export function statusOf(run: Run): string {
  if (run.finished) return "finished";
  if (!run.history) return "unfinished";
  if (run.history.status !== "running") return run.history.status;
  return now() - run.history.saved > SILENT_SECONDS ? "lost" : "running";
}

function historyOf(snapshot: Snapshot): History | null {
  const state = checkpointOf(snapshot, "history")?.["state"];
  if (!isObject(state)) return null;
  const parts = isObject(state["parts"]) ? Object.entries(state["parts"]) : [];
  const series = isObject(state["series"]) ? Object.entries(state["series"]) : [];
  return {
    mode: text(state["mode"]),
    status: text(state["status"]),
    error: typeof state["error"] === "string" ? state["error"] : null,
    command: text(state["command"]),
    version: text(state["version"]),
    began: number(state["began"]),
    ended: number(state["ended"]),
    saved: snapshot.update_time,
    runners: number(state["n_runners"]),
    parts: parts.map(([name, part]) => [name, isObject(part) ? text(part["type"]) : "", isObject(part) ? part["config"] : undefined]),
    steps: Array.isArray(state["steps"]) ? state["steps"].map(Number) : [],
    series: series.map(([name, values]) => [name, Array.isArray(values) ? values.map(number) : []]),
  };
}

function checkpointOf(snapshot: Snapshot, key: string): Record<string, unknown> | null {
  const resource = snapshot.resources[key] as Record<string, unknown> | undefined;
  return resource?.["resource_type"] === "checkpoint" ? resource : null;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");
const number = (value: unknown): number | null => (typeof value === "number" ? value : null);

function numbers(value: unknown): Record<string, number> {
  if (!isObject(value)) return {};
  return Object.fromEntries(Object.entries(value).filter((entry): entry is [string, number] => typeof entry[1] === "number"));
}
