import { Toggle } from "@base-ui/react/toggle";
import { ToggleGroup } from "@base-ui/react/toggle-group";
import { Columns2, Download } from "lucide-react";
import { memo, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Link, useNavigate } from "react-router";
import type { Rollout, RolloutMode, RolloutStatus, Summary } from "../api/client";
import { PAGE, type RolloutFilter, type TextSearch, useCounts, useRolloutPages, useSummaries, useTextSearch } from "../api/queries";
import { ChangeStatus } from "../components/ChangeStatus";
import { Problem, Reward, Status } from "../components/parts";
import { SearchField } from "../components/SearchField";
import { isTyping } from "../components/Shortcuts";
import { VirtualRows } from "../components/VirtualRows";
import { now } from "../lib/clock";
import { exportRollouts } from "../lib/export";
import { NONE, ago, count, counts, duration, reward, task, time } from "../lib/format";
import { toast } from "../lib/toast";
import { useUrl } from "../lib/url";

const GROUPS: [label: string, statuses: RolloutStatus[]][] = [
  ["All", []],
  ["Running", ["preparing", "running"]],
  ["Queued", ["queuing", "requeuing"]],
  ["Succeeded", ["succeeded"]],
  ["Failed", ["failed"]],
  ["Cancelled", ["cancelled"]],
];

const MODES: RolloutMode[] = ["train", "val", "test"];

const COLUMNS: [label: string, sort: string, className: string][] = [
  ["Status", "status", "c-status"],
  ["Input", "", "c-input"],
  ["Rollout", "rollout_id", "c-id"],
  ["Mode", "mode", "c-mode"],
  ["Reward", "reward", "c-num"],
  ["Duration", "duration", "c-num"],
  ["Attempt", "", "c-num"],
  ["Tokens", "", "c-num"],
  ["Created", "start_time", "c-time"],
];

export function RolloutsPage() {
  const [url, change] = useUrl();
  const navigate = useNavigate();
  const group = url.get("status") ?? "All";
  const contains = url.get("q") ?? "";
  const text = url.get("text") ?? "";
  const search = useTextSearch(text);
  const said = text ? (search.ids ?? NOBODY) : null;
  const mode = MODES.find((each) => each === url.get("mode"));
  const sort = url.get("sort") ?? "-start_time";
  const filter: RolloutFilter = useMemo(
    () => ({
      status: GROUPS.find(([label]) => label === group)?.[1] ?? [],
      mode: mode ? [mode] : [],
      contains,
      ids: said,
      sortBy: sort.replace(/^-/, ""),
      descending: sort.startsWith("-"),
    }),
    [group, mode, contains, said, sort],
  );
  const [range, setRange] = useState<[number, number]>([0, 40]);
  const pages = useMemo(() => {
    const [from, to] = [Math.floor(range[0] / PAGE), Math.floor(Math.max(range[1], 0) / PAGE)];
    return Array.from({ length: to - from + 1 }, (_, index) => from + index);
  }, [range]);
  const results = useRolloutPages(filter, pages);
  const found = results.find(({ data }) => data)?.data?.total;
  const known = useRef(0);
  known.current = found ?? known.current; // after a jump, no page in sight is there yet
  const total = known.current;
  const at = useCallback(
    (index: number): Rollout | undefined => {
      const position = pages.indexOf(Math.floor(index / PAGE));
      const result = results[position];
      return result && !result.isPlaceholderData ? result.data?.items[index % PAGE] : undefined;
    },
    [pages, results],
  );
  const ids: string[] = [];
  for (let index = range[0]; index <= range[1]; index += 1) {
    const found = at(index);
    if (found) ids.push(found.rollout_id);
  }
  const summaries = useSummaries(ids);
  const numbers = useCounts();
  const isOld = numbers.data === null; // its server has neither the filter nor the figures
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const row = Number(url.get("row") ?? -1);
  const [cursor, setCursor] = useState(row);
  const latest = useRef(cursor); // keys may come faster than the page is drawn
  const move = useCallback((to: number) => {
    latest.current = to;
    setCursor(to);
  }, []);
  useEffect(() => move(row), [filter, row, move]);
  const choose = (values: Record<string, string>, replace = false): void => change({ ...values, row: "" }, replace);
  const open = useCallback(
    (index: number, id: string): void => {
      change({ row: String(index) }, true); // the back button returns to this row
      void navigate(`/rollouts/${encodeURIComponent(id)}`);
    },
    [change, navigate],
  );
  const toggle = useCallback((id: string) => {
    setSelected((old) => {
      const next = new Set(old);
      if (!next.delete(id)) next.add(id);
      return next;
    });
  }, []);
  const onRange = useCallback((first: number, last: number) => setRange([first, last]), []);

  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      if (isTyping(event)) return;
      if (event.key === "j") move(Math.min(latest.current + 1, total - 1));
      else if (event.key === "k") move(Math.max(latest.current - 1, 0));
      else if (event.key === "Escape") setSelected(new Set());
      else {
        const rollout = at(latest.current);
        if (!rollout) return;
        if (event.key === "x") toggle(rollout.rollout_id);
        else if (event.key === "Enter" && !(event.target instanceof HTMLElement && event.target.closest("button, a"))) {
          open(latest.current, rollout.rollout_id);
        }
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [at, move, open, toggle, total]);

  const problem = results.find(({ error }) => error)?.error;
  const waiting = results.some(({ isPending }) => isPending);
  return (
    <section className="page page-fill">
      <div className="page-head">
        <h1>Rollouts</h1>
        <span className="muted">{count(total)}</span>
        {!isOld && (
          <label className="select">
            Mode
            <select value={mode ?? ""} onChange={(event) => choose({ mode: event.target.value })}>
              <option value="">all</option>
              {MODES.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
        )}
        <SearchField label="Search by id" value={contains} onChange={(q) => choose({ q }, true)} />
        {!isOld && <SearchField label="Search messages" value={text} onChange={(text) => choose({ text }, true)} />}
      </div>
      {text !== "" && <Searched search={search} />}
      <ToggleGroup
        className="chips"
        aria-label="Status"
        value={[group]}
        onValueChange={([label = group]) => choose({ status: label === "All" ? "" : label })}
      >
        {GROUPS.map(([label, statuses]) => (
          <Toggle key={label} className="chip" value={label}>
            {label}
            <span className="chip-count">{numbers.data ? count(sum(numbers.data, statuses)) : ""}</span>
          </Toggle>
        ))}
      </ToggleGroup>
      <Problem error={problem} />
      <VirtualRows
        className="rollouts"
        label="Rollouts"
        count={total}
        current={cursor}
        onRange={onRange}
        head={<Head sort={sort} isOld={isOld} onSort={(by) => choose({ sort: by })} />}
        row={(index, top) => {
          const rollout = at(index);
          const summary = rollout && summaries?.get(rollout.rollout_id);
          return (
            <Row
              key={index}
              index={index}
              top={top}
              rollout={rollout}
              score={summary?.reward}
              tokens={tokensOf(summary)}
              took={rollout ? duration(secondsOf(rollout)) : NONE}
              created={rollout ? ago(rollout.start_time) : NONE}
              selected={rollout !== undefined && selected.has(rollout.rollout_id)}
              current={index === cursor}
              onToggle={toggle}
              onOpen={open}
            />
          );
        }}
      />
      {total === 0 && !waiting && !problem && (
        <p className="empty">{contains || text || mode || group !== "All" ? "No rollout matches." : "No rollouts yet. They appear here as soon as an algorithm enqueues them."}</p>
      )}
      {selected.size > 0 && <Selection ids={[...selected]} onClear={() => setSelected(new Set())} />}
    </section>
  );
}

function sum(counts: Record<RolloutStatus, number>, statuses: RolloutStatus[]): number {
  const names = statuses.length ? statuses : (Object.keys(counts) as RolloutStatus[]);
  return names.reduce((total, name) => total + counts[name], 0);
}

function Head({ sort, isOld, onSort }: { sort: string; isOld: boolean; onSort: (by: string) => void }) {
  return (
    <div role="row" className="row head">
      <span role="columnheader" className="c-check">
        <span className="visually-hidden">Select</span>
      </span>
      {COLUMNS.map(([label, key, className]) => {
        const by = isOld && FIGURES.has(key) ? "" : key;
        const active = by !== "" && sort.replace(/^-/, "") === by;
        const descending = sort.startsWith("-");
        return (
          <span key={label} role="columnheader" className={className} aria-sort={active ? (descending ? "descending" : "ascending") : undefined}>
            {by ? (
              <button type="button" className="sort" onClick={() => onSort(active && !descending ? `-${by}` : active ? by : `-${by}`)}>
                {label}
                <span aria-hidden>{active ? (descending ? " ↓" : " ↑") : ""}</span>
              </button>
            ) : (
              label
            )}
          </span>
        );
      })}
    </div>
  );
}

const NOBODY: string[] = [];

/** How far a search of text came. */
function Searched({ search }: { search: TextSearch }) {
  return (
    <p className="searched muted" role="status">
      {count(search.ids?.length ?? 0)} found in {search.goOn ? `the newest ${count(search.searched)} of ${count(search.total)} rollouts` : `${count(search.total)} rollouts`}
      {search.searching && "; searching…"}
      {search.goOn && !search.searching && (
        <>
          {". "}
          <button type="button" className="link" onClick={search.goOn}>
            Search further
          </button>
        </>
      )}
      <Problem error={search.error} />
    </p>
  );
}

const FIGURES = new Set(["reward", "duration"]);

function tokensOf(summary: Summary | undefined): number | null {
  if (summary?.input_tokens == null && summary?.output_tokens == null) return null;
  return (summary.input_tokens ?? 0) + (summary.output_tokens ?? 0);
}

/** Seconds of the latest attempt, so far if it runs. */
function secondsOf(rollout: Rollout): number | null {
  const attempt = attemptOf(rollout);
  return attempt ? (attempt.end_time ?? (rollout.end_time || null) ?? now()) - attempt.start_time : null;
}

function attemptOf(rollout: Rollout) {
  return "attempt" in rollout ? rollout.attempt : undefined;
}

interface RowProps {
  index: number;
  top: number;
  rollout: Rollout | undefined;
  score: number | null | undefined;
  tokens: number | null;
  took: string;
  created: string;
  selected: boolean;
  current: boolean;
  onToggle: (id: string) => void;
  onOpen: (index: number, id: string) => void;
}

// Drawn again only if what it shows has changed: a list that is scrolled draws its new rows alone.
const Row = memo(function Row({ index, top, rollout, score, tokens, took, created, selected, current, onToggle, onOpen }: RowProps) {
  const place = (element: HTMLDivElement | null): void => {
    if (element) element.style.transform = `translateY(${top}px)`;
  };
  if (!rollout) {
    return (
      <div role="row" className="row loading" aria-rowindex={index + 2} ref={place}>
        <span role="cell">Loading…</span>
      </div>
    );
  }
  const id = rollout.rollout_id;
  const attempt = attemptOf(rollout);
  const most = rollout.config?.max_attempts ?? 1;
  return (
    <div
      role="row"
      className="row"
      aria-rowindex={index + 2}
      data-selected={selected || undefined}
      data-current={current || undefined}
      ref={place}
      onClick={(event) => {
        if (!(event.target as HTMLElement).closest("input, a, label")) onOpen(index, id);
      }}
    >
      <span role="cell" className="c-check">
        <input type="checkbox" aria-label={`Select ${id}`} checked={selected} onChange={() => onToggle(id)} />
      </span>
      <span role="cell" className="c-status">
        <Status value={rollout.status} />
      </span>
      <span role="cell" className="c-input" dir="auto">
        {task(rollout.input)}
      </span>
      <span role="cell" className="c-id mono">
        <a
          href={`rollouts/${encodeURIComponent(id)}`}
          onClick={(event) => {
            if (event.metaKey || event.ctrlKey) return;
            event.preventDefault();
            onOpen(index, id);
          }}
        >
          {id}
        </a>
      </span>
      <span role="cell" className="c-mode">
        {rollout.mode ?? NONE}
      </span>
      <span role="cell" className="c-num">
        <Reward value={score} text={reward(score)} counts={counts(rollout.status)} />
      </span>
      <span role="cell" className="c-num">
        {took}
      </span>
      <span role="cell" className="c-num">
        {attempt ? `${attempt.sequence_id}/${most}` : NONE}
      </span>
      <span role="cell" className="c-num">
        {count(tokens)}
      </span>
      <span role="cell" className="c-time" title={time(rollout.start_time)}>
        {created}
      </span>
    </div>
  );
});

function Selection({ ids, onClear }: { ids: string[]; onClear: () => void }) {
  const save = (): void =>
    void exportRollouts(ids).then(
      (spans) => toast(`Exported ${ids.length} rollouts, ${spans} spans`),
      (error: unknown) => toast(String(error)),
    );
  return (
    <div className="selection" role="region" aria-label="Selection">
      <strong>{ids.length} selected</strong>
      {ids.length === 2 && (
        <Link className="button" to={`/rollouts/${encodeURIComponent(ids[0] ?? "")}?with=${encodeURIComponent(ids[1] ?? "")}`}>
          <Columns2 size={14} aria-hidden /> Compare
        </Link>
      )}
      <ChangeStatus ids={ids} to="cancelled" />
      <ChangeStatus ids={ids} to="requeuing" />
      <button type="button" className="button" onClick={save}>
        <Download size={14} aria-hidden /> Export
      </button>
      <button type="button" className="button quiet" onClick={onClear}>
        Clear
      </button>
    </div>
  );
}
