import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { useShownTheme } from "../lib/settings";

export interface Line {
  label: string;
  values: (number | null)[];
  /** The lower and the upper end of the interval around each value. */
  band?: [low: (number | null)[], high: (number | null)[]];
}

interface Props {
  label: string;
  x: number[];
  lines: Line[];
  height?: number;
  onPick?: (index: number) => void;
  /** A text beside the names of the lines. */
  note?: string;
}

const COLORS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5"];

/** Lines over steps; a line with intervals has a band around it. */
export function Chart({ label, x, lines, height = 240, onPick, note }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const pick = useRef(onPick);
  pick.current = onPick;
  const theme = useShownTheme();
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name: string): string => style.getPropertyValue(name).trim();
    const series: uPlot.Series[] = [{ label: "step" }];
    const bands: uPlot.Band[] = [];
    const columns: (number | null)[][] = [x];
    lines.forEach((line, index) => {
      const stroke = color(COLORS[index % COLORS.length] ?? "--series-1");
      series.push({ label: line.label, stroke, width: 2, spanGaps: true, points: { show: x.length < 60, size: 6, fill: stroke } });
      columns.push(line.values);
      if (line.band) {
        const [low, high] = line.band;
        bands.push({ series: [series.length, series.length + 1], fill: `${stroke}22` });
        for (const edge of [high, low]) {
          series.push({ stroke: "transparent", spanGaps: true, points: { show: false } });
          columns.push(edge);
        }
      }
    });
    const axis: uPlot.Axis = {
      stroke: color("--muted"),
      grid: { stroke: color("--line"), width: 1 },
      ticks: { stroke: color("--line"), width: 1 },
      font: "12px system-ui, sans-serif",
    };
    const plot = new uPlot(
      {
        width: element.clientWidth,
        height,
        series,
        bands,
        axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000] }, { ...axis, size: 56 }],
        scales: { x: { time: false } },
        legend: { show: false },
        cursor: { y: false },
      },
      columns as uPlot.AlignedData,
      element,
    );
    const clicked = (): void => {
      if (plot.cursor.idx != null) pick.current?.(plot.cursor.idx);
    };
    plot.over.addEventListener("click", clicked);
    const resize = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      plot.destroy();
    };
  }, [x, lines, height, theme]);
  return (
    <figure className="chart">
      <figcaption>
        {lines.map((line, index) => (
          <span key={line.label} className="key" data-series={(index % COLORS.length) + 1}>
            {line.label}
            {line.band ? " with 95 % interval" : ""}
          </span>
        ))}
        {note && <span className="note">{note}</span>}
      </figcaption>
      <div ref={host} className="plot" role="img" aria-label={label} />
    </figure>
  );
}
