import { Link } from "react-router";
import { Diff } from "../components/Diff";
import { ago, count, preview } from "../lib/format";
import type { PromptVersion } from "../lib/prompts";
import { useUrl } from "../lib/url";
import { ScoreOnTasks } from "./Score";

const DEEPEST = 8; // steps of indentation

/** Prompt versions as a tree, and what the chosen one changed of its parent. */
export function Prompts({ versions }: { versions: PromptVersion[] }) {
  const [url, change] = useUrl();
  const chosen = versions.find(({ id, name }) => `${id}/${name}` === url.get("prompt")) ?? versions.find(({ best }) => best) ?? versions.at(-1);
  if (!chosen) return null;
  return (
    <div className="split">
      <ul className="list tree" aria-label="Prompt versions">
        {versions.map((version) => (
          <li key={`${version.id}/${version.name}`} style={{ paddingLeft: `${Math.min(version.depth, DEEPEST) * 16}px` }}>
            <button type="button" aria-pressed={version === chosen} onClick={() => change({ prompt: `${version.id}/${version.name}` })}>
              <span>
                {version.depth > 0 && <span aria-hidden>└ </span>}
                {preview(version.name, 40)}
              </span>
              <span className="muted mono">{preview(version.id, 40)}</span>
              {version.scores[0] ? <ScoreOnTasks of={version.scores[0]} /> : <span className="muted">{ago(version.time)}</span>}
              {version.best && <span className="good-text">chosen by the run</span>}
              {version.parent && <span className="visually-hidden">edited from {version.parent.id}</span>}
            </button>
          </li>
        ))}
      </ul>
      <div>
        <p className="muted">
          <Link to={`/resources?id=${encodeURIComponent(chosen.id)}`}>{chosen.id}</Link>
          {chosen.parent ? `, edited from ${chosen.parent.id}` : ", the first version"}
        </p>
        {chosen.scores.map((score) => (
          <p key={score.mode}>
            <ScoreOnTasks of={score} />
            <span className="muted">{` from ${count(score.rollouts)} rollouts`}</span>
          </p>
        ))}
        <Diff before={chosen.parent?.text ?? chosen.text} after={chosen.text} label="Prompt" />
      </div>
    </div>
  );
}
