import type { Span } from "../api/client";
import { Facts, Json } from "../components/parts";
import { NONE, bounded, duration, preview, time } from "../lib/format";
import { nameOf } from "../lib/spans";

/** Everything that one span says. */
export function SpanDetail({ span }: { span: Span }) {
  const took = span.start_time != null && span.end_time != null ? span.end_time - span.start_time : null;
  const attributes = Object.entries(span.attributes).toSorted(([a], [b]) => (a < b ? -1 : 1));
  return (
    <section className="detail" aria-label="Span">
      <h2 dir="auto">{preview(nameOf(span), 200)}</h2>
      {span.status.status_code === "ERROR" && (
        <p className="notice bad" dir="auto">
          {bounded(span.status.description || "The span ended with an error", 4000)}
        </p>
      )}
      <Facts
        items={[
          ["Started", time(span.start_time)],
          ["Took", duration(took)],
          ["Sequence", span.sequence_id],
          ["Span", <span className="mono">{span.span_id}</span>],
          ["Parent", <span className="mono">{span.parent_id ?? NONE}</span>],
          ["Trace", <span className="mono">{span.trace_id}</span>],
        ]}
      />
      <h3>Attributes</h3>
      {attributes.length === 0 && <p className="muted">None.</p>}
      <dl className="attributes">
        {attributes.map(([key, value]) => (
          <div key={key}>
            <dt className="mono">{bounded(key, 200)}</dt>
            <dd dir="auto">{typeof value === "string" ? <Text value={value} /> : bounded(JSON.stringify(value), 20_000)}</dd>
          </div>
        ))}
      </dl>
      {span.events.length > 0 && (
        <>
          <h3>Events</h3>
          <Json value={span.events} label="Events" />
        </>
      )}
      <details>
        <summary>Raw JSON</summary>
        <Json value={span} label="Raw JSON" />
      </details>
    </section>
  );
}

/** A string; JSON inside it is indented. */
function Text({ value }: { value: string }) {
  const first = value.trimStart()[0];
  if ((first === "{" || first === "[") && value.length < 200_000) {
    try {
      return <pre className="inline-json">{bounded(JSON.stringify(JSON.parse(value), null, 2), 20_000)}</pre>;
    } catch {
      // Not JSON: shown as it is.
    }
  }
  return <>{bounded(value, 20_000)}</>;
}
