import type { Snapshot } from "../api/client";
import { useSnapshots } from "../api/queries";
import { Diff } from "../components/Diff";
import { Empty, Facts, Problem } from "../components/parts";
import { ago, count, preview, time } from "../lib/format";
import { isRecord } from "../lib/runs";
import { masked } from "../lib/secrets";
import { useUrl } from "../lib/url";

export function ResourcesPage() {
  const [url, change] = useUrl();
  const query = useSnapshots();
  const all = (query.data ?? []).filter((snapshot) => !isRecord(snapshot));
  const snapshots = all.toSorted((a, b) => b.update_time - a.update_time);
  const chosen = snapshots.find(({ resources_id }) => resources_id === url.get("id")) ?? snapshots[0];
  const before = chosen && snapshots[snapshots.indexOf(chosen) + 1];
  const against = snapshots.find(({ resources_id }) => resources_id === url.get("with")) ?? before;
  return (
    <section className="page">
      <div className="page-head">
        <h1>Resources</h1>
        <span className="muted">{count(snapshots.length)} snapshots</span>
      </div>
      <Problem error={query.error} />
      {query.data && !chosen && <Empty>No resources yet. Prompts and models that an algorithm publishes appear here.</Empty>}
      {chosen && (
        <div className="split">
          <ul className="list">
            {snapshots.slice(0, 500).map((snapshot) => (
              <li key={snapshot.resources_id}>
                <button type="button" aria-pressed={snapshot === chosen} onClick={() => change({ id: snapshot.resources_id, with: "" })}>
                  <span className="mono">{preview(snapshot.resources_id, 48)}</span>
                  <span className="muted">v{snapshot.version}</span>
                  <span className="muted">{Object.keys(snapshot.resources).map((name) => preview(name, 24)).join(", ")}</span>
                  <span className="muted">{ago(snapshot.update_time)}</span>
                </button>
              </li>
            ))}
          </ul>
          <div>
            <div className="page-head">
              <h2 className="mono">{chosen.resources_id}</h2>
              {snapshots.length > 1 && (
                <label className="select">
                  Compare with
                  <select value={against?.resources_id ?? ""} onChange={(event) => change({ id: chosen.resources_id, with: event.target.value })}>
                    {snapshots
                      .filter((snapshot) => snapshot !== chosen)
                      .slice(0, 500)
                      .map(({ resources_id }) => (
                        <option key={resources_id}>{resources_id}</option>
                      ))}
                    {!against && <option value="">nothing</option>}
                  </select>
                </label>
              )}
            </div>
            <Facts
              items={[
                ["Version", chosen.version],
                ["Created", time(chosen.create_time)],
                ["Updated", time(chosen.update_time)],
              ]}
            />
            {Object.keys(chosen.resources).map((name) => (
              <section key={name}>
                <h3>
                  {preview(name, 80)} <span className="tag">{kind(chosen, name)}</span>
                </h3>
                <Diff before={text(against ?? chosen, name)} after={text(chosen, name)} label={preview(name, 80)} />
              </section>
            ))}
          </div>
        </div>
      )}
    </section>
  );
}

function kind(snapshot: Snapshot, name: string): string {
  return preview((snapshot.resources[name] as Record<string, unknown> | undefined)?.["resource_type"] ?? "", 40);
}

/** A prompt's text as it is; any other resource as JSON. */
function text(snapshot: Snapshot, name: string): string {
  const resource = snapshot.resources[name] as Record<string, unknown> | undefined;
  if (resource === undefined) return "";
  if (typeof resource["template"] === "string") return resource["template"];
  return JSON.stringify(masked(resource), null, 2);
}
