import { useMemo } from "react";
import { Chart } from "../components/Chart";
import { SearchField } from "../components/SearchField";
import { count, preview, reward } from "../lib/format";
import type { History } from "../lib/runs";
import { useUrl } from "../lib/url";

const SHOWN = 24; // charts at first: each takes a canvas

/** Every metric that the algorithm reported, over its steps. */
export function Metrics({ history }: { history: History }) {
  const [url, change] = useUrl();
  const wanted = url.get("metric") ?? "";
  const found = history.series.filter(([name]) => name.toLowerCase().includes(wanted.toLowerCase()));
  const shown = url.get("metrics") === "all" ? found : found.slice(0, SHOWN);
  return (
    <section aria-label="Metrics">
      <div className="page-head">
        <h2>Metrics</h2>
        <span className="muted">
          {count(found.length)} over {count(history.steps.length)} steps
        </span>
        <SearchField label="Search metrics" value={wanted} onChange={(metric) => change({ metric }, true)} />
      </div>
      <div className="charts">
        {shown.map(([name, values]) => (
          <Metric key={name} name={name} steps={history.steps} values={values} />
        ))}
      </div>
      {shown.length < found.length && (
        <button type="button" className="button" onClick={() => change({ metrics: "all" })}>
          Show all {count(found.length)}
        </button>
      )}
    </section>
  );
}

function Metric({ name, steps, values }: { name: string; steps: number[]; values: (number | null)[] }) {
  const label = preview(name, 60);
  const lines = useMemo(() => [{ label, values }], [label, values]);
  const last = values.findLast((value) => value !== null);
  return (
    <div className="metric" data-metric={name}>
      <Chart label={`${label} over steps`} x={steps} lines={lines} height={150} />
      <span className="muted">last {reward(last)}</span>
    </div>
  );
}
