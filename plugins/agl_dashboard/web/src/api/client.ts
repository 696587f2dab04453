// The typed client of the store server's REST API. Types come from its OpenAPI document.
import createClient, { type Middleware } from "openapi-fetch";
import { noteDate } from "../lib/clock";
import type { components, paths } from "./schema";

type Schemas = components["schemas"];
export type Rollout = Schemas["AttemptedRollout"] | Schemas["Rollout"];
export type Attempt = Schemas["Attempt"];
export type Span = Schemas["Span"];
export type Worker = Schemas["Worker"];
export type Snapshot = Schemas["ResourcesUpdate"];
export type Summary = Schemas["RolloutSummary"];
export type ModelCall = Schemas["ModelCallView"];
export type Batch = Schemas["BatchSummary"];
export type SnapshotScore = Schemas["SnapshotScore"];
export type BatchCost = Schemas["BatchCost"];
export type PairedGain = Schemas["PairedGain"];
export type BatchGroups = Schemas["BatchGroups"];
export type StoreEvent = Schemas["StoreEvent"];
export type RolloutMode = NonNullable<Rollout["mode"]>;
export type RolloutStatus = Rollout["status"] & string;

/** URL of the server: the page is mounted one level below it. */
export const SERVER = new URL("../", document.baseURI).href.replace(/\/$/, "");

const TOKEN_KEY = "agl.token";
export const token = {
  get: (): string => localStorage.getItem(TOKEN_KEY) ?? "",
  set: (value: string): void => {
    if (value) localStorage.setItem(TOKEN_KEY, value);
    else localStorage.removeItem(TOKEN_KEY);
  },
};

export function authHeaders(): Record<string, string> {
  const value = token.get();
  return value ? { Authorization: `Bearer ${value}` } : {};
}

/** A reply that is an error, or no reply at all (status 0). */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
  /** The route is not there: an older server. */
  get missing(): boolean {
    return this.status === 404 || this.status === 405 || this.status === 501;
  }
}

const auth: Middleware = {
  onRequest({ request }) {
    for (const [name, value] of Object.entries(authHeaders())) request.headers.set(name, value);
    return request;
  },
  onResponse({ response }) {
    noteDate(response.headers.get("date"));
    return undefined;
  },
};

export const api = createClient<paths>({ baseUrl: SERVER });
api.use(auth);

/** Return the data of a call, or throw an ApiError. */
export async function data<T>(
  call: Promise<{ data?: T; error?: unknown; response: Response }>,
): Promise<T> {
  let reply: { data?: T; error?: unknown; response: Response };
  try {
    reply = await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer");
  }
  if (!reply.response.ok) throw new ApiError(reply.response.status, detailOf(reply.error, reply.response));
  return reply.data as T;
}

function detailOf(error: unknown, response: Response): string {
  if (error && typeof error === "object" && "detail" in error) {
    const detail = (error as { detail: unknown }).detail;
    return typeof detail === "string" ? detail : JSON.stringify(detail);
  }
  return `${response.status} ${response.statusText}`;
}
