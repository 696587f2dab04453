// Server-sent events: one stream per page, which wakes the queries that show what changed.
import type { QueryClient, QueryKey } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import { ApiError, SERVER, type StoreEvent, authHeaders } from "./client";
import { settings } from "../lib/settings";

export type Connection = "connecting" | "live" | "polling" | "offline" | "unauthorized";

let state: Connection = "connecting";
const listeners = new Set<() => void>();

function set(next: Connection): void {
  if (next === state) return;
  state = next;
  for (const listener of listeners) listener();
}

export function useConnection(): Connection {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}

/** Connect again after an API call that met no server, or one that refused the token. */
export function noteError(error: unknown): void {
  if (!(error instanceof ApiError) || (error.status !== 0 && error.status !== 401)) return;
  // Only a new connection can tell when it is over.
  if (state === "live") reconnect();
}

let restart: AbortController | null = null;

/** Connect again at once, for example with another token. */
export function reconnect(): void {
  restart?.abort();
}

/** Keep the stream open until the page is left. */
export async function listen(client: QueryClient): Promise<never> {
  const wake = new Wake(client);
  let pause = 500;
  for (;;) {
    const control = (restart = new AbortController());
    try {
      const events = await heard(open(control.signal));
      if (events === null) {
        set("polling");
        await settings.changedOr(settings.refreshSeconds() * 1000, control.signal);
        await client.invalidateQueries();
        continue;
      }
      pause = 500;
      set("live");
      // Whatever changed while there was no stream. A slow answer keeps no event waiting.
      void client.invalidateQueries();
      await read(events, wake);
    } catch (error) {
      if (control.signal.aborted) {
        set("connecting");
        continue;
      }
      if (error instanceof ApiError && error.status === 401) set("unauthorized");
      else set("offline");
    }
    await sleep(pause, control.signal);
    pause = Math.min(pause * 2, 4000);
  }
}

// The server sends a comment after 15 s without an event; three that stay away are no delay.
const SILENCE_MS = 45_000;

/** Wait for the server's next word; connect again if it stays away: a lost connection may end without an error. */
async function heard<T>(word: Promise<T>): Promise<T> {
  const timer = setTimeout(reconnect, SILENCE_MS);
  try {
    return await word;
  } finally {
    clearTimeout(timer);
  }
}

/** Open the stream; null means that this server has none. */
async function open(signal: AbortSignal): Promise<ReadableStreamDefaultReader<Uint8Array> | null> {
  const response = await fetch(`${SERVER}/v1/agl/events`, { headers: authHeaders(), signal });
  if ([404, 405, 501].includes(response.status)) {
    await response.body?.cancel();
    const health = await fetch(`${SERVER}/v1/agl/health`, { signal });
    if (!health.ok) throw new ApiError(health.status, "The server is not healthy");
    return null;
  }
  if (!response.ok || response.body === null) {
    throw new ApiError(response.status, `No events: ${response.status}`);
  }
  return response.body.getReader();
}

async function read(reader: ReadableStreamDefaultReader<Uint8Array>, wake: Wake): Promise<void> {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { done, value } = await heard(reader.read());
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const lines = text.split("\n");
    text = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data:")) wake.add(JSON.parse(line.slice(5)) as StoreEvent);
    }
  }
}

/** Gathers events and refreshes what they concern, each query at most every 300 ms and never twice at a time. */
class Wake {
  private kinds = new Set<string>();
  private rollouts = new Set<string>();
  /** Hashes of queries whose fetch had begun before an event came. */
  private behind = new Set<string>();
  private timer: number | undefined;
  constructor(private readonly client: QueryClient) {}

  add(event: StoreEvent): void {
    this.kinds.add(event.kind);
    if (event.rollout_id) this.rollouts.add(event.rollout_id);
    this.arm();
  }

  private arm(): void {
    this.timer ??= window.setTimeout(() => this.flush(), 300);
  }

  private flush(): void {
    this.timer = undefined;
    const { kinds, rollouts, behind } = this;
    this.kinds = new Set();
    this.rollouts = new Set();
    this.behind = new Set();
    void this.client.invalidateQueries({
      predicate: ({ queryKey, queryHash, state }) => {
        if (!behind.has(queryHash) && !concerns(queryKey, kinds, rollouts)) return false;
        if (state.fetchStatus === "idle") return true;
        // A new fetch would end this one: an answer that takes longer than a pause of the events would never come.
        this.behind.add(queryHash);
        return false;
      },
    });
    if (this.behind.size > 0) this.arm();
  }
}

function concerns([kind, id]: QueryKey, kinds: Set<string>, rollouts: Set<string>): boolean {
  if (kind === "rollout") return rollouts.has(String(id));
  if (kind === "text" || kind === "costs") return false; // they read many rollouts
  if (kind === "workers") return kinds.has("worker") || kinds.has("attempt");
  if (kind === "resources" || kind === "runs") return kinds.has("resources");
  return kinds.has("rollout") || kinds.has("attempt");
}

export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
