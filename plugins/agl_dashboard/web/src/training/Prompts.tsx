import { Link } from "react-router";
import { Diff } from "../components/Diff";
import { Reward } from "../components/parts";
import { ago, count, preview, reward } from "../lib/format";
import type { PromptVersion } from "../lib/prompts";
import { useUrl } from "../lib/url";

const DEEPEST = 8; // steps of indentation

/** Prompt versions as a tree, and what the chosen one changed of its parent. */
export function Prompts({ versions }: { versions: PromptVersion[] }) {
  const [url, change] = useUrl();
  const best = versions.reduce<PromptVersion | undefined>((top, each) => (each.score !== null && (top?.score == null || each.score > top.score) ? each : top), undefined);
  const chosen = versions.find(({ id, name }) => `${id}/${name}` === url.get("prompt")) ?? best ?? versions.at(-1);
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
              <Reward value={version.score} text={reward(version.score)} />
              {version === best && <span className="good-text">best</span>}
              <span className="muted">{version.rollouts ? `${count(version.rollouts)} rollouts` : ago(version.time)}</span>
              {version.parent && <span className="visually-hidden">edited from {version.parent.id}</span>}
            </button>
          </li>
        ))}
      </ul>
      <div>
        <p className="muted">
          <Link to={`/resources?id=${encodeURIComponent(chosen.id)}`}>{chosen.id}</Link>
          {chosen.parent ? `, edited from ${chosen.parent.id}${gain(chosen, chosen.parent)}` : ", the first version"}
        </p>
        <Diff before={chosen.parent?.text ?? chosen.text} after={chosen.text} label="Prompt" />
      </div>
    </div>
  );
}

function gain({ score }: PromptVersion, parent: PromptVersion): string {
  if (score === null || parent.score === null) return "";
  const difference = score - parent.score;
  return ` (${difference < 0 ? "−" : "+"}${reward(Math.abs(difference))})`;
}
