// The spans of an attempt as a tree, with the rewards they carry.
import type { ModelCall, Span } from "../api/client";

export interface Node {
  span: Span;
  depth: number;
  children: Node[];
  rewards: [name: string, value: number][];
}

/** Return the roots; a span whose parent is not among the spans is one. Cycles are cut. */
export function treeOf(spans: Span[]): Node[] {
  const nodes = new Map<string, Node>();
  for (const span of spans) nodes.set(span.span_id, { span, depth: 0, children: [], rewards: rewardsOf(span) });
  const roots: Node[] = [];
  for (const node of nodes.values()) {
    const parent = node.span.parent_id ? nodes.get(node.span.parent_id) : undefined;
    if (parent && parent !== node) parent.children.push(node);
    else roots.push(node);
  }
  const seen = new Set<Node>();
  const place = (start: Node[]): void => {
    const waiting: [Node, number][] = start.map((node) => [node, 0]);
    for (let next = waiting.pop(); next; next = waiting.pop()) {
      const [node, depth] = next;
      node.depth = depth;
      seen.add(node);
      node.children = node.children.filter((child) => !seen.has(child));
      node.children.sort(byStart);
      for (const child of node.children) waiting.push([child, depth + 1]);
    }
  };
  roots.sort(byStart);
  place(roots);
  for (const node of nodes.values()) {
    if (!seen.has(node)) {
      roots.push(node); // one of a cycle
      place([node]);
    }
  }
  return roots;
}

/**
 * Return the spans with the times of their callers' clock: a span of another machine that is outside of
 * the call that caused it moves into its middle, with what is below it.
 */
export function aligned(spans: Span[]): Span[] {
  if (!spans.some((span) => span.parent?.is_remote)) return spans;
  const moved = new Map<string, Span>();
  const waiting: [Node, Span | null, number][] = treeOf(spans).map((root) => [root, null, 0]);
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const [{ span, children }, parent, above] = next;
    const shift = parent && span.parent?.is_remote ? skew(parent, span) : above;
    const at = (time: number | null | undefined): number | null => (time == null ? null : time + shift);
    const here = shift ? { ...span, start_time: at(span.start_time), end_time: at(span.end_time) } : span;
    moved.set(span.span_id, here);
    for (const child of children) waiting.push([child, here, shift]);
  }
  return spans.map((span) => moved.get(span.span_id) ?? span);
}

function skew(outer: Span, inner: Span): number {
  const [from, to, start, end] = [outer.start_time, outer.end_time, inner.start_time, inner.end_time];
  if (from == null || to == null || start == null || end == null || (from <= start && end <= to)) return 0;
  return from + Math.max(0, (to - from - (end - start)) / 2) - start;
}

/** Return the nodes from top to bottom, without what is below folded ones. */
export function flatten(roots: Node[], folded: ReadonlySet<string>): Node[] {
  const rows: Node[] = [];
  const waiting = roots.toReversed();
  for (let node = waiting.pop(); node; node = waiting.pop()) {
    rows.push(node);
    if (!folded.has(node.span.span_id)) waiting.push(...node.children.toReversed());
  }
  return rows;
}

function byStart(a: Node, b: Node): number {
  return (a.span.start_time ?? 0) - (b.span.start_time ?? 0) || a.span.sequence_id - b.span.sequence_id;
}

/** Return the dimensions of the reward that a span carries. */
export function rewardsOf(span: Span): [string, number][] {
  const found: [string, number][] = [];
  for (let index = 0; ; index += 1) {
    const value = span.attributes[`agentlightning.reward.${index}.value`];
    if (typeof value !== "number") return found;
    found.push([String(span.attributes[`agentlightning.reward.${index}.name`] ?? "primary"), value]);
  }
}

/** Return the rewards by the call they belong to: the latest call that had ended without one. */
export function rewardsOfCalls(calls: ModelCall[], spans: Span[]): Map<string, [string, number][]> {
  const rewarded = new Map<string, [string, number][]>();
  const timed = aligned(spans);
  const times = new Map(timed.map((span) => [span.span_id, span]));
  const order = calls.map((call) => times.get(call.span_id) ?? call).toSorted((a, b) => (a.start_time ?? 0) - (b.start_time ?? 0));
  for (const span of timed) {
    const rewards = rewardsOf(span);
    const start = span.start_time;
    if (rewards.length === 0 || start == null) continue;
    const call = order.findLast((item) => (item.end_time ?? Infinity) <= start && !rewarded.has(item.span_id));
    if (call) rewarded.set(call.span_id, rewards);
  }
  return rewarded;
}

export type Kind = "model" | "tool" | "reward" | "agent" | "error" | "other";

export function kindOf(node: Node): Kind {
  const { span } = node;
  const operation = String(span.attributes["gen_ai.operation.name"] ?? span.attributes["openinference.span.kind"] ?? "").toLowerCase();
  if (node.rewards.length) return "reward";
  if (/tool/.test(operation) || "tool.name" in span.attributes) return "tool";
  if (/chat|completion|generate_content|llm|response/.test(operation) || /openai\.chat|chat\.completion|anthropic/.test(span.name)) return "model";
  if (/agent/.test(operation)) return "agent";
  return "other";
}
