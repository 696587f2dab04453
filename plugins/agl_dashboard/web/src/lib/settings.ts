// What the reader chose, kept in the browser.
import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
export interface Settings {
  theme: Theme;
  timeZone: "local" | "utc";
  refreshSeconds: number;
}

const KEY = "agl.settings";
const DEFAULTS: Settings = { theme: "system", timeZone: "local", refreshSeconds: 2 };
const listeners = new Set<() => void>();
let current = load();

function load(): Settings {
  try {
    return { ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Settings>) };
  } catch {
    return DEFAULTS; // not JSON: another program wrote it
  }
}

function shownTheme(): "light" | "dark" {
  if (current.theme !== "system") return current.theme;
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function apply(): void {
  document.documentElement.dataset["theme"] = shownTheme();
  for (const listener of listeners) listener();
}

export const settings = {
  get: (): Settings => current,
  refreshSeconds: (): number => current.refreshSeconds,
  set(change: Partial<Settings>): void {
    current = { ...current, ...change };
    localStorage.setItem(KEY, JSON.stringify(current));
    apply();
  },
  subscribe(listener: () => void): () => void {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
  /** Wait some time, or until the settings change or the signal aborts. */
  changedOr(ms: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const end = (): void => {
        clearTimeout(timer);
        stop();
        resolve();
      };
      const stop = settings.subscribe(end);
      const timer = setTimeout(end, ms);
      signal.addEventListener("abort", end);
    });
  },
  start(): void {
    apply();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  },
};

export function useSettings(): Settings {
  return useSyncExternalStore(settings.subscribe, settings.get);
}

/** The theme that is shown; it changes with the system's, too. */
export function useShownTheme(): "light" | "dark" {
  return useSyncExternalStore(settings.subscribe, shownTheme);
}
