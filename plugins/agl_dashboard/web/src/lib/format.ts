// Numbers and times as text. The unit is always written.
import { now } from "./clock";
import { settings } from "./settings";

export const NONE = "–";

export function duration(seconds: number | null | undefined): string {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  return h > 0 ? `${h} h ${String(m).padStart(2, "0")} m` : `${m} m ${String(s).padStart(2, "0")} s`;
}

export function time(seconds: number | null | undefined): string {
  if (seconds == null) return NONE;
  const date = new Date(seconds * 1000);
  const utc = settings.get().timeZone === "utc";
  const part = (value: number): string => String(value).padStart(2, "0");
  const [y, mo, d, h, mi, s] = utc
    ? [date.getUTCFullYear(), date.getUTCMonth(), date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()]
    : [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
  return `${y}-${part(mo + 1)}-${part(d)} ${part(h)}:${part(mi)}:${part(s)}`;
}

export function ago(seconds: number | null | undefined): string {
  if (seconds == null) return NONE;
  const passed = Math.max(0, now() - seconds);
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return `${Math.floor(passed / 86_400)} d ago`;
}

export function count(value: number | null | undefined): string {
  return value == null ? NONE : value.toLocaleString("en-US");
}

export function reward(value: number | null | undefined): string {
  if (value == null) return NONE;
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001)
    ? value.toExponential(2)
    : value.toFixed(3);
}

/** A metric of any kind: numbers of tokens and rollouts are whole. */
export function metric(value: number | null | undefined): string {
  return value != null && Number.isInteger(value) && Math.abs(value) > 1 ? count(value) : reward(value);
}

/** Whether the reward of a rollout of a status counts: one that failed may have emitted it before it crashed. */
export function counts(status: string | null | undefined): boolean {
  return status !== "failed" && status !== "cancelled";
}

/** A 95 % interval, which the server computed; empty if it has none. */
export function interval(low: number | null | undefined, high: number | null | undefined): string {
  return low == null || high == null ? "" : `[${reward(low)}, ${reward(high)}]`;
}

/** One line of any value, cut to a length. */
export function preview(value: unknown, length = 160): string {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "");
  return visible(text.slice(0, length * 2)).replace(/\s+/g, " ").slice(0, length);
}

/** A task on one line: the fields of an object without the marks of JSON. */
export function task(value: unknown, length = 160): string {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return preview(value, length);
  const fields = Object.entries(value).map(([key, item]) => `${key}: ${typeof item === "string" ? item : JSON.stringify(item)}`);
  return preview(fields.join(" · "), length);
}

/** Text with control characters and direction marks made visible, so that none acts. */
export function visible(text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, (character) => {
    const code = character.charCodeAt(0);
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : `\u27e8U+${code.toString(16).toUpperCase()}\u27e9`;
  });
}

const LONGEST = 100_000;

/** Text for the page: visible, and cut where the browser would become slow. */
export function bounded(text: string, longest = LONGEST): string {
  if (text.length <= longest) return visible(text);
  return `${visible(text.slice(0, longest))}\n… ${count(text.length - longest)} more characters`;
}
