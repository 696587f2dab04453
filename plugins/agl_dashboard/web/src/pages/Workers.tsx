import { useEffect, useState } from "react";
import { Link } from "react-router";
import { useWorkers } from "../api/queries";
import { Empty, Problem, Status } from "../components/parts";
import { SearchField } from "../components/SearchField";
import { now as serverTime } from "../lib/clock";
import { NONE, ago, count, preview } from "../lib/format";
import { useUrl } from "../lib/url";

const SILENT_SECONDS = 60;

export function WorkersPage() {
  const [url, change] = useUrl();
  const workers = useWorkers();
  const now = useNow();
  const wanted = url.get("q") ?? "";
  const shown = (workers.data ?? [])
    .filter(({ worker_id }) => worker_id.includes(wanted))
    .map((worker) => {
      const heard = Math.max(worker.last_heartbeat_time ?? 0, worker.last_dequeue_time ?? 0) || null;
      const silent = heard !== null && now - heard > SILENT_SECONDS;
      // A dead runner cannot write that it is dead; a busy one sends heartbeats, an idle one asks for work.
      return { worker, heard, silent, status: silent ? "unknown" : worker.status };
    });
  const busy = shown.filter(({ status }) => status === "busy").length;
  const silent = shown.filter((each) => each.silent).length;
  return (
    <section className="page">
      <div className="page-head">
        <h1>Workers</h1>
        <span className="muted">
          {count(shown.length)}, {count(busy)} busy
          {silent > 0 && <span className="bad-text">, {count(silent)} silent</span>}
        </span>
        <SearchField label="Search by id" value={wanted} onChange={(q) => change({ q }, true)} />
      </div>
      <Problem error={workers.error} />
      {workers.data?.length === 0 && <Empty>No worker has reported yet. Runners appear here with their first heartbeat.</Empty>}
      {shown.length > 0 && (
        <div className="table-scroll" tabIndex={0} role="region" aria-label="Workers">
          <table className="table">
            <thead>
              <tr>
                <th scope="col">Status</th>
                <th scope="col">Worker</th>
                <th scope="col">Works on</th>
                <th scope="col" className="num">Heartbeat</th>
                <th scope="col" className="num">CPU</th>
                <th scope="col" className="num">Memory</th>
                <th scope="col">GPU</th>
                <th scope="col" className="num">Last claim</th>
              </tr>
            </thead>
            <tbody>
              {shown.map(({ worker, heard, silent, status }) => {
                const load = loadOf(silent ? null : worker.heartbeat_stats);
                return (
                  <tr key={worker.worker_id}>
                    <td>
                      <Status value={status} />
                    </td>
                    <th scope="row" className="mono">
                      {preview(worker.worker_id, 80)}
                    </th>
                    <td className="mono">
                      {worker.current_rollout_id ? (
                        <Link to={`/rollouts/${encodeURIComponent(worker.current_rollout_id)}`}>{worker.current_rollout_id}</Link>
                      ) : (
                        NONE
                      )}
                    </td>
                    <td className="num">
                      <span className={silent ? "bad-text" : ""}>{ago(heard)}</span>
                    </td>
                    <td className="num">{load.cpu}</td>
                    <td className="num">{load.memory}</td>
                    <td>{load.gpu}</td>
                    <td className="num">{ago(worker.last_dequeue_time)}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

/** Seconds since the epoch, renewed each second: ages grow without an event. */
function useNow(): number {
  const [now, setNow] = useState(serverTime());
  useEffect(() => {
    const timer = setInterval(() => setNow(serverTime()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

/** The load that a runner reports with its heartbeats. */
function loadOf(stats: Record<string, unknown> | null | undefined): { cpu: string; memory: string; gpu: string } {
  const percent = (key: string): string => {
    const value = stats?.[key];
    return typeof value === "number" ? `${value.toFixed(0)} %` : NONE;
  };
  const told: unknown[] = Array.isArray(stats?.["gpus"]) ? stats["gpus"] : [];
  const gpus = told.filter((gpu): gpu is Record<string, unknown> => typeof gpu === "object" && gpu !== null);
  return {
    cpu: percent("cpu_usage_pct"),
    memory: percent("mem_pct"),
    gpu: gpus.length ? gpus.map((gpu) => `${preview(gpu["gpu"] ?? "GPU", 30)} ${preview(gpu["util_pct"] ?? NONE, 5)} %`).join(", ") : NONE,
  };
}
