// Rollouts and their spans as a JSON Lines file.
import { type Rollout, api, data } from "../api/client";

/** Save rollouts with their spans, one per line; return the number of spans. */
export async function exportRollouts(rollouts: Rollout[]): Promise<number> {
  const lines: string[] = [];
  let spans = 0;
  for (const rollout of rollouts) {
    const page = await data(api.GET("/v1/agl/spans", { params: { query: { rollout_id: rollout.rollout_id } } }));
    spans += page.items.length;
    lines.push(JSON.stringify({ rollout, spans: page.items }));
  }
  const url = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = `rollouts-${rollouts.length}.jsonl`;
  link.click();
  URL.revokeObjectURL(url);
  return spans;
}
