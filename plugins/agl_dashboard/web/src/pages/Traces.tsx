import { type FormEvent, useMemo } from "react";
import { Link } from "react-router";
import type { Span } from "../api/client";
import { isOpen, useRollout, useRolloutPages, useSpans } from "../api/queries";
import { Empty, Problem } from "../components/parts";
import { SearchField } from "../components/SearchField";
import { VirtualRows } from "../components/VirtualRows";
import { NONE, count, duration, preview, time } from "../lib/format";
import { nameOf } from "../lib/spans";
import { useUrl } from "../lib/url";

const COLUMNS: [label: string, key: string, className: string][] = [
  ["#", "sequence_id", "t-seq"],
  ["Name", "name", "t-name"],
  ["Status", "status", "t-status"],
  ["Took", "took", "c-num"],
  ["Attributes", "", "t-attributes"],
  ["Started", "start_time", "c-time"],
];

const took = (span: Span): number => (span.end_time ?? NaN) - (span.start_time ?? NaN);
const VALUES: Record<string, (span: Span) => number | string> = {
  sequence_id: (span) => span.sequence_id,
  name: nameOf,
  status: (span) => span.status.status_code,
  took: (span) => took(span) || 0,
  start_time: (span) => span.start_time ?? 0,
};

export function TracesPage() {
  const [url, change] = useUrl();
  const recent = useRolloutPages({ status: [], mode: [], contains: "", ids: null, sortBy: "start_time", descending: true }, [0])[0]?.data?.items ?? [];
  const started = recent.filter((rollout) => "attempt" in rollout);
  // The newest one has no spans yet, as long as new ones keep coming.
  const newest = started.find((rollout) => !isOpen(rollout)) ?? started[0];
  const id = url.get("rollout") ?? newest?.rollout_id ?? "";
  const runs = isOpen(useRollout(id).data);
  const spans = useSpans(id, url.get("attempt") ?? "", runs);
  const wanted = url.get("q") ?? "";
  const sort = url.get("sort") ?? "sequence_id";
  const attempts = useMemo(() => [...new Set(spans.data?.map(({ attempt_id }) => attempt_id))], [spans.data]);
  const shown = useMemo(() => {
    const value = VALUES[sort.replace(/^-/, "")] ?? VALUES["sequence_id"];
    const sign = sort.startsWith("-") ? -1 : 1;
    const compare = (a: Span, b: Span): number => {
      const [x, y] = [value?.(a) ?? 0, value?.(b) ?? 0];
      return x < y ? -sign : x > y ? sign : a.sequence_id - b.sequence_id;
    };
    return (spans.data ?? []).filter((span) => matches(span, wanted)).sort(compare);
  }, [spans.data, wanted, sort]);
  const open = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const value = new FormData(event.currentTarget).get("rollout");
    if (typeof value === "string") change({ rollout: value.trim(), attempt: "" });
  };
  return (
    <section className="page page-fill">
      <div className="page-head">
        <h1>Traces</h1>
        <span className="muted">
          {count(shown.length)} of {count(spans.data?.length ?? 0)} spans
        </span>
        <SearchField label="Search names, attributes and times" value={wanted} onChange={(q) => change({ q }, true)} />
        <form className="compare" onSubmit={open} key={id}>
          <input name="rollout" aria-label="Rollout" list="recent" defaultValue={id} placeholder="Rollout id" />
          <datalist id="recent">
            {recent.map(({ rollout_id }) => (
              <option key={rollout_id} value={rollout_id} />
            ))}
          </datalist>
        </form>
        {attempts.length > 1 && (
          <label className="select">
            Attempt
            <select value={url.get("attempt") ?? ""} onChange={(event) => change({ attempt: event.target.value })}>
              <option value="">all</option>
              {attempts.map((attempt) => (
                <option key={attempt}>{attempt}</option>
              ))}
            </select>
          </label>
        )}
      </div>
      <Problem error={spans.error} />
      {shown.length === 0 && !spans.isLoading && <Empty>{wanted ? "No span matches." : "No spans. Name a rollout to see its spans."}</Empty>}
      <VirtualRows
        className="traces"
        label="Spans"
        count={shown.length}
        head={
          <div role="row" className="row head">
            {COLUMNS.map(([label, key, className]) => {
              const active = key !== "" && sort.replace(/^-/, "") === key;
              return (
                <span key={label} role="columnheader" className={className} aria-sort={active ? (sort.startsWith("-") ? "descending" : "ascending") : undefined}>
                  {key ? (
                    <button type="button" className="sort" onClick={() => change({ sort: active && !sort.startsWith("-") ? `-${key}` : key })}>
                      {label}
                      <span aria-hidden>{active ? (sort.startsWith("-") ? " ↓" : " ↑") : ""}</span>
                    </button>
                  ) : (
                    label
                  )}
                </span>
              );
            })}
          </div>
        }
        row={(index, top) => {
          const span = shown[index];
          return span && <Row key={`${span.attempt_id}/${span.span_id}`} span={span} top={top} />;
        }}
      />
    </section>
  );
}

function matches(span: Span, wanted: string): boolean {
  if (!wanted) return true;
  const text = wanted.toLowerCase();
  if (span.name.toLowerCase().includes(text) || span.span_id.includes(text)) return true;
  if (time(span.start_time).includes(text)) return true;
  return Object.entries(span.attributes).some(([key, value]) => `${key}=${String(value)}`.toLowerCase().includes(text));
}

function Row({ span, top }: { span: Span; top: number }) {
  const attributes = Object.entries(span.attributes)
    .slice(0, 6)
    .map(([key, value]) => `${key}=${preview(value, 40)}`);
  const target = `/rollouts/${encodeURIComponent(span.rollout_id)}?attempt=${encodeURIComponent(span.attempt_id)}&span=${encodeURIComponent(span.span_id)}`;
  return (
    <div
      role="row"
      className="row"
      ref={(element) => {
        if (element) element.style.transform = `translateY(${top}px)`;
      }}
    >
      <span role="cell" className="t-seq">{span.sequence_id}</span>
      <span role="cell" className="t-name" dir="auto">
        <Link to={target}>{preview(nameOf(span), 120) || "unnamed"}</Link>
      </span>
      <span role="cell" className="t-status">
        {span.status.status_code === "ERROR" ? <span className="tag bad">error</span> : span.status.status_code === "OK" ? "ok" : NONE}
      </span>
      <span role="cell" className="c-num">{duration(took(span))}</span>
      <span role="cell" className="t-attributes mono" dir="auto">{preview(attributes.join("  "), 300)}</span>
      <span role="cell" className="c-time">{time(span.start_time)}</span>
    </div>
  );
}
