/** A copy of a resource in which keys of providers cannot be read over a shoulder. */
export function masked(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(masked);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [key, key === "api_key" && item ? "••••••••" : masked(item)]),
  );
}
