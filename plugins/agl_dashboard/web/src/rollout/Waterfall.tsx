import { ChevronDown, ChevronRight } from "lucide-react";
import { useEffect, useMemo } from "react";
import type { Span } from "../api/client";
import { Empty, Reward } from "../components/parts";
import { isTyping } from "../components/Shortcuts";
import { VirtualRows } from "../components/VirtualRows";
import { NONE, duration, preview, reward } from "../lib/format";
import { nameOf } from "../lib/spans";
import { type Node, aligned, flatten, kindOf, treeOf } from "./tree";

interface Props {
  spans: Span[];
  chosen: string;
  onChoose: (id: string) => void;
  folded: ReadonlySet<string>;
  onFold: (ids: ReadonlySet<string>) => void;
}

/** The span tree over time. */
export function Waterfall({ spans: recorded, chosen, onChoose, folded, onFold }: Props) {
  const spans = useMemo(() => aligned(recorded), [recorded]);
  const roots = useMemo(() => treeOf(spans), [spans]);
  const rows = useMemo(() => flatten(roots, folded), [roots, folded]);
  const [start, end] = useMemo(() => extent(spans), [spans]);
  const current = rows.findIndex(({ span }) => span.span_id === chosen);
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if (isTyping(event)) return;
      const step = event.key === "j" ? 1 : event.key === "k" ? -1 : 0;
      const next = rows[Math.max(0, Math.min(rows.length - 1, current + step))];
      if (step !== 0 && next) onChoose(next.span.span_id);
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [rows, current, onChoose]);
  if (spans.length === 0) return <Empty>No spans in this attempt yet.</Empty>;
  const toggle = (id: string): void => {
    const next = new Set(folded);
    if (!next.delete(id)) next.add(id);
    onFold(next);
  };
  return (
    <VirtualRows
      className="waterfall"
      label="Spans"
      count={rows.length}
      current={current}
      head={
        <div role="row" className="row head">
          <span role="columnheader" className="w-name">
            Span
          </span>
          <span role="columnheader" className="w-took">
            Took
          </span>
          <span role="columnheader" className="w-time">
            0 – {duration(end - start)}
          </span>
        </div>
      }
      row={(index, top) => {
        const node = rows[index];
        if (!node) return null;
        const id = node.span.span_id;
        return (
          <SpanRow
            key={id}
            node={node}
            top={top}
            start={start}
            total={end - start}
            chosen={id === chosen}
            open={!folded.has(id)}
            onToggle={() => toggle(id)}
            onChoose={() => onChoose(id)}
          />
        );
      }}
    />
  );
}

function extent(spans: Span[]): [number, number] {
  let [start, end] = [Infinity, -Infinity];
  for (const span of spans) {
    if (span.start_time != null) start = Math.min(start, span.start_time);
    if (span.end_time != null) end = Math.max(end, span.end_time);
  }
  return Number.isFinite(start) ? [start, Math.max(end, start)] : [0, 0];
}

interface RowProps {
  node: Node;
  top: number;
  start: number;
  total: number;
  chosen: boolean;
  open: boolean;
  onToggle: () => void;
  onChoose: () => void;
}

function SpanRow({ node, top, start, total, chosen, open, onToggle, onChoose }: RowProps) {
  const { span, depth, rewards, children } = node;
  const took = span.start_time != null && span.end_time != null ? span.end_time - span.start_time : null;
  const failed = span.status.status_code === "ERROR";
  const from = span.start_time != null && total > 0 ? (span.start_time - start) / total : 0;
  const width = took != null && total > 0 ? took / total : 0;
  return (
    <div
      role="row"
      className="row"
      data-current={chosen || undefined}
      ref={(element) => {
        if (element) element.style.transform = `translateY(${top}px)`;
      }}
      onClick={onChoose}
    >
      <span role="cell" className="w-name" style={{ paddingLeft: `${Math.min(depth, 24) * 14}px` }}>
        {children.length > 0 ? (
          <button
            type="button"
            className="fold"
            aria-expanded={open}
            aria-label={`${open ? "Fold" : "Unfold"} ${preview(nameOf(span), 40)}`}
            onClick={(event) => {
              event.stopPropagation();
              onToggle();
            }}
          >
            {open ? <ChevronDown size={14} aria-hidden /> : <ChevronRight size={14} aria-hidden />}
          </button>
        ) : (
          <span className="fold" />
        )}
        <button type="button" className="span-name" data-kind={kindOf(node)} aria-pressed={chosen} dir="auto">
          {preview(nameOf(span), 120)}
        </button>
        {rewards.map(([name, value]) => (
          <Reward key={name} value={value} text={`${name === "primary" ? "" : `${preview(name, 20)} `}${reward(value)}`} />
        ))}
        {failed && <span className="tag bad">error</span>}
      </span>
      <span role="cell" className="w-took">
        {took == null ? NONE : duration(took)}
      </span>
      <span role="cell" className="w-time">
        <span className="bar-track">
          <span
            className="bar-fill"
            data-kind={failed ? "error" : kindOf(node)}
            style={{ left: `${from * 100}%`, width: `max(${width * 100}%, 2px)` }}
          />
        </span>
      </span>
    </div>
  );
}
