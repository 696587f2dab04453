import { useMemo } from "react";
import { Chart, type Line } from "../components/Chart";
import { SearchField } from "../components/SearchField";
import { count, interval, metric, preview } from "../lib/format";
import type { History } from "../lib/runs";
import { useUrl } from "../lib/url";

const SHOWN = 24; // charts at first: each takes a canvas

/** Every metric that the algorithm reported, over its steps. */
export function Metrics({ history }: { history: History }) {
  const [url, change] = useUrl();
  const wanted = url.get("metric") ?? "";
  const series = new Map(history.series);
  const found = history.series.filter(([name]) => name.toLowerCase().includes(wanted.toLowerCase()) && !isEnd(name, series));
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
          <Metric key={name} name={name} steps={history.steps} values={values} low={series.get(`${name}_low`)} high={series.get(`${name}_high`)} />
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

type Values = (number | null)[];

/** Whether a metric is an end of the interval of another one, whose chart shows it as a band. */
function isEnd(name: string, series: Map<string, Values>): boolean {
  return /_(low|high)$/.test(name) && series.has(name.replace(/_(low|high)$/, ""));
}

interface Props {
  name: string;
  steps: number[];
  values: Values;
  low: Values | undefined;
  high: Values | undefined;
}

function Metric({ name, steps, values, low, high }: Props) {
  const label = preview(name, 60);
  const lines = useMemo((): Line[] => [low && high ? { label, values, band: [low, high] } : { label, values }], [label, values, low, high]);
  const last = values.findLast((value) => value !== null);
  return (
    <div className="metric" data-metric={name}>
      <Chart
        label={`${label} over steps`}
        x={steps}
        lines={lines}
        height={150}
        note={`last ${metric(last)} ${last == null ? "" : interval(low?.findLast((value) => value !== null), high?.findLast((value) => value !== null))}`}
      />
    </div>
  );
}
