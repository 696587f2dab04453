// A list of any length: only the rows in sight exist.
import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useRef } from "react";

export const ROW = 34;
const OVERSCAN = 12;
const TALLEST = 8_000_000; // pixels; browsers draw nothing below about 17 million

interface Props {
  count: number;
  label: string;
  head: ReactNode;
  row: (index: number, top: number) => ReactNode;
  /** Called with the first and last row in sight. */
  onRange?: (first: number, last: number) => void;
  /** Row to keep in sight. */
  current?: number;
  className: string;
}

export function VirtualRows({ count, label, head, row, onRange, current, className }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  // In a list taller than that, a row takes less of the scrolled height than of the screen.
  const pitch = Math.min(ROW, TALLEST / Math.max(count, 1));
  const isTall = pitch < ROW;
  const height = scroller.current?.clientHeight ?? 800;
  const room = Math.max(1, Math.floor(height / ROW) - 1); // whole rows below the head
  // Scrolled to its end, a tall list has its last row at the bottom.
  const extent = isTall ? (count - room + 1) * pitch + height - ROW + 1 : count * ROW;
  const virtual = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => pitch,
    overscan: OVERSCAN,
    paddingEnd: isTall ? extent - count * pitch + ROW : 0,
  });
  useEffect(() => virtual.measure(), [virtual, pitch]);
  const items = virtual.getVirtualItems();
  const top = virtual.range?.startIndex ?? 0;
  const first = isTall ? top : (items[0]?.index ?? 0);
  const last = isTall ? Math.min(count - 1, top + room + OVERSCAN) : (items.at(-1)?.index ?? -1);
  useEffect(() => {
    if (last >= first) onRange?.(first, last);
  }, [first, last, onRange]);
  const isEmpty = count === 0; // a row of the address is found when the rows are there
  useEffect(() => {
    if (current === undefined || current < 0 || isEmpty) return;
    if (pitch === ROW) virtual.scrollToIndex(current);
    else {
      const start = virtual.range?.startIndex ?? 0;
      if (current < start) virtual.scrollToOffset(current * pitch);
      else if (current >= start + room) virtual.scrollToOffset((current - room + 1) * pitch);
    }
  }, [current, virtual, isEmpty, pitch, room]);
  const rows: ReactNode[] = [];
  for (let index = first; index <= last; index += 1) {
    rows.push(row(index, first * pitch + (index - first) * ROW));
  }
  return (
    <div ref={scroller} className={`rows ${className}`} role="table" aria-label={label} aria-rowcount={count + 1} tabIndex={0}>
      <div className="rows-head" role="rowgroup">
        {head}
      </div>
      <div className="rows-body" role="rowgroup" ref={(body) => { if (body) body.style.height = `${extent}px`; }}>
        {rows}
      </div>
    </div>
  );
}
