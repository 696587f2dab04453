import { Tabs } from "@base-ui/react/tabs";
import { ArrowLeft, Columns2, X } from "lucide-react";
import { type FormEvent, type ReactNode, useCallback, useMemo } from "react";
import { Link, useParams } from "react-router";
import type { Rollout } from "../api/client";
import { isOpen, useAttempts, useModelCalls, useRollout, useSnapshots, useSpans, useSummaries } from "../api/queries";
import { ChangeStatus } from "../components/ChangeStatus";
import { Hint, IconButton } from "../components/Hint";
import { Empty, Facts, Json, Problem, Reward, Status } from "../components/parts";
import { Chat } from "../rollout/Chat";
import { SpanDetail } from "../rollout/SpanDetail";
import { Waterfall } from "../rollout/Waterfall";
import { now } from "../lib/clock";
import { NONE, count, counts, duration, preview, reward, task, time } from "../lib/format";
import { masked } from "../lib/secrets";
import { useUrl } from "../lib/url";

const VIEWS = ["Trace", "Chat", "Resources", "JSON"] as const;

export function RolloutPage() {
  const { id = "" } = useParams();
  const [url, change] = useUrl();
  const other = url.get("with") ?? "";
  const compare = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const value = new FormData(event.currentTarget).get("other");
    if (typeof value === "string" && value.trim()) change({ with: value.trim() });
  };
  return (
    <section className="page page-fill">
      <div className="page-head">
        <Hint text="All rollouts">
          <Link to="/rollouts" className="icon-button" aria-label="All rollouts">
            <ArrowLeft size={16} aria-hidden />
          </Link>
        </Hint>
        <h1 className="mono">{id}</h1>
        {!other && (
          <form className="compare" onSubmit={compare}>
            <Columns2 size={14} aria-hidden />
            <input name="other" aria-label="Compare with rollout" placeholder="Compare with rollout id" />
          </form>
        )}
      </div>
      <div className={other ? "columns" : "column"}>
        <OneRollout id={id} suffix="" />
        {other && (
          <OneRollout
            key={other}
            id={other}
            suffix="2"
            head={
              <>
                <h2 className="mono">{other}</h2>
                <IconButton label="Close comparison" onClick={() => change({ with: "", span2: "", attempt2: "", fold2: "" })}>
                  <X size={16} aria-hidden />
                </IconButton>
              </>
            }
          />
        )}
      </div>
    </section>
  );
}

function OneRollout({ id, suffix, head }: { id: string; suffix: string; head?: ReactNode }) {
  const [url, change] = useUrl();
  const rollout = useRollout(id);
  const attempts = useAttempts(id);
  const view = VIEWS.find((name) => name === url.get("view")) ?? "Trace";
  const attempt = url.get(`attempt${suffix}`) ?? "";
  if (rollout.error) return <Problem error={rollout.error} />;
  if (rollout.data === undefined) return <Empty>Loading…</Empty>;
  if (rollout.data === null) return <Empty>The store has no rollout {id}.</Empty>;
  const shown = attempt || attempts.data?.at(-1)?.attempt_id || "";
  return (
    <Tabs.Root className="one" value={view} onValueChange={(name) => change({ view: name === "Trace" ? "" : name })}>
      {head && <div className="one-head">{head}</div>}
      <Head rollout={rollout.data} />
      <div className="tabs">
        <Tabs.List aria-label="View" className="chips">
          {VIEWS.map((name) => (
            <Tabs.Tab key={name} className="chip" value={name}>
              {name}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        {(attempts.data?.length ?? 0) > 0 && (
          <label className="select">
            Attempt
            <select value={shown} onChange={(event) => change({ [`attempt${suffix}`]: event.target.value, [`span${suffix}`]: "", [`fold${suffix}`]: "" })}>
              {attempts.data?.map((item) => (
                <option key={item.attempt_id} value={item.attempt_id}>
                  {item.sequence_id} · {item.status}
                </option>
              ))}
            </select>
          </label>
        )}
      </div>
      <Tabs.Panel value={view} className="panel">
        {view === "Trace" && <Trace id={id} attempt={shown} runs={isOpen(rollout.data)} suffix={suffix} />}
        {view === "Chat" && <Messages id={id} attempt={shown} runs={isOpen(rollout.data)} onSpan={(span) => change({ view: "", [`span${suffix}`]: span })} />}
        {view === "Resources" && <Used rollout={rollout.data} />}
        {view === "JSON" && (
          <div className="scroll">
            <Json value={{ rollout: rollout.data, attempts: attempts.data }} label="Rollout and attempts as JSON" />
          </div>
        )}
      </Tabs.Panel>
    </Tabs.Root>
  );
}

function Head({ rollout }: { rollout: Rollout }) {
  const summary = useSummaries([rollout.rollout_id])?.get(rollout.rollout_id);
  const attempt = "attempt" in rollout ? rollout.attempt : undefined;
  const to = isOpen(rollout) ? "cancelled" : "requeuing";
  const dimensions = Object.entries(summary?.rewards ?? {}).filter(([name]) => name !== "primary");
  return (
    <>
      <div className="summary">
        <Facts
          items={[
            ["Status", <Status value={rollout.status} />],
            ["Reward", <Reward value={summary?.reward} text={reward(summary?.reward)} counts={counts(rollout.status)} />],
            ...dimensions.map(([name, value]): [string, ReactNode] => [preview(name, 24), <Reward value={value} text={reward(value)} counts={counts(rollout.status)} />]),
            ["Duration", duration(attempt ? (attempt.end_time ?? now()) - attempt.start_time : null)],
            ["Tokens", summary ? `${count(summary.input_tokens)} → ${count(summary.output_tokens)}` : NONE],
            ["Calls", count(summary?.model_calls)],
            ["Spans", count(summary?.spans)],
            ["Mode", rollout.mode ?? NONE],
            ["Worker", attempt?.worker_id ? preview(attempt.worker_id, 40) : NONE],
            ["Created", time(rollout.start_time)],
          ]}
        />
        <div className="actions">
          <ChangeStatus key={to} ids={[rollout.rollout_id]} to={to} />
        </div>
      </div>
      <p className="task" dir="auto">
        <span className="muted">Task</span> {task(rollout.input, 600)}
      </p>
      {typeof attempt?.metadata?.["error"] === "string" && (
        <p className="notice bad" dir="auto">
          {preview(attempt.metadata["error"], 600)}
          {typeof attempt.metadata["infrastructure"] === "string" && ` (the ${preview(attempt.metadata["infrastructure"], 40)} failed it, not the agent)`}
        </p>
      )}
    </>
  );
}

function Trace({ id, attempt, runs, suffix }: { id: string; attempt: string; runs: boolean; suffix: string }) {
  const [url, change] = useUrl();
  const chosen = url.get(`span${suffix}`) ?? "";
  const choose = useCallback((span: string) => change({ [`span${suffix}`]: span }, true), [change, suffix]);
  const list = url.get(`fold${suffix}`) ?? "";
  const folded = useMemo(() => new Set(list.split(" ").filter(Boolean)), [list]);
  const fold = (ids: ReadonlySet<string>): void => change({ [`fold${suffix}`]: [...ids].join(" ") }, true);
  const spans = useSpans(id, attempt, runs);
  if (spans.error) return <Problem error={spans.error} />;
  if (!spans.data) return <Empty>Loading spans…</Empty>;
  const span = spans.data.find(({ span_id }) => span_id === chosen);
  return (
    <div className={span ? "trace with-detail" : "trace"}>
      <Waterfall spans={spans.data} chosen={chosen} onChoose={choose} folded={folded} onFold={fold} />
      {span && (
        <div className="detail-pane">
          <IconButton label="Close span" className="close" onClick={() => choose("")}>
            <X size={16} aria-hidden />
          </IconButton>
          <SpanDetail span={span} />
        </div>
      )}
    </div>
  );
}

function Messages({ id, attempt, runs, onSpan }: { id: string; attempt: string; runs: boolean; onSpan: (span: string) => void }) {
  const spans = useSpans(id, attempt, runs);
  const calls = useModelCalls(id, attempt, spans.data?.length ?? 0);
  if (calls.error) return <Problem error={calls.error} />;
  if (calls.data === undefined || !spans.data) return <Empty>Loading messages…</Empty>;
  return (
    <div className="scroll">
      <Chat calls={calls.data} spans={spans.data} onSpan={onSpan} />
    </div>
  );
}

function Used({ rollout }: { rollout: Rollout }) {
  const snapshots = useSnapshots();
  if (!rollout.resources_id) return <Empty>This rollout was given no resources.</Empty>;
  if (snapshots.error) return <Problem error={snapshots.error} />;
  const found = snapshots.data?.find(({ resources_id }) => resources_id === rollout.resources_id);
  if (!found) return <Empty>{snapshots.isPending ? "Loading…" : `The store has no snapshot ${rollout.resources_id}.`}</Empty>;
  return (
    <div className="scroll">
      <p>
        Snapshot <Link to={`/resources?id=${encodeURIComponent(found.resources_id)}`}>{found.resources_id}</Link>, version {found.version}
      </p>
      <Json value={masked(found.resources)} label="Resources" />
    </div>
  );
}
