// Small parts that every page uses.
import type { ReactNode } from "react";
import { ApiError } from "../api/client";
import { bounded } from "../lib/format";

export function Status({ value }: { value: string | null | undefined }) {
  return (
    <span className="status" data-status={value ?? "unknown"}>
      <span className="dot" aria-hidden />
      {value ?? "unknown"}
    </span>
  );
}

/** A reward; one that does not count, since its rollout failed, is struck out. */
export function Reward({ value, text, counts = true }: { value: number | null | undefined; text: string; counts?: boolean }) {
  const sign = value == null ? "none" : value > 0 ? "positive" : value < 0 ? "negative" : "zero";
  return (
    <span className="reward" data-sign={sign} data-counts={counts || value == null ? undefined : "false"} title={counts || value == null ? undefined : "Does not count: the rollout did not succeed"}>
      {text}
    </span>
  );
}

export function Facts({ items }: { items: [label: string, value: ReactNode][] }) {
  return (
    <dl className="facts">
      {items.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Any value as indented JSON, as text only. */
export function Json({ value, label }: { value: unknown; label: string }) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  return (
    <pre className="json" tabIndex={0} role="region" aria-label={label}>
      {bounded(text)}
    </pre>
  );
}

/** What a query that failed has to say. */
export function Problem({ error }: { error: unknown }) {
  if (!error) return null;
  const text = error instanceof ApiError ? error.message : String(error);
  const cannot = error instanceof ApiError && error.status === 403;
  return (
    <p className="notice bad" role="alert">
      {text}
      {cannot && " This token may only read."}
    </p>
  );
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}
