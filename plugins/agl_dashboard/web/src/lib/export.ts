// Rollouts and their spans as a JSON Lines file.
import { readRollout, readSpans } from "../api/queries";

/** Save rollouts as they are now with their spans, one per line; return the number of spans. */
export async function exportRollouts(ids: string[]): Promise<number> {
  const lines: string[] = [];
  let spans = 0;
  for (const id of ids) {
    // Before its spans: those of a rollout that has ended are then whole.
    const rollout = await readRollout(id);
    if (rollout === null) throw new Error(`The store has no rollout ${id}`);
    const own = await readSpans(id);
    spans += own.length;
    lines.push(JSON.stringify({ rollout, spans: own }));
  }
  const url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `rollouts-${ids.length}.jsonl`;
  link.click();
  URL.revokeObjectURL(url);
  return spans;
}
