import type { SnapshotScore } from "../api/client";
import { useGain } from "../api/queries";
import { Diff } from "../components/Diff";
import { count, preview } from "../lib/format";
import { type PromptVersion, firstAndChosen } from "../lib/prompts";
import { PairedGainText, Score, tasksOf } from "./Score";

/** Whether the run got better: what its first prompt and the one that it chose score on the same kind of tasks. */
export function Gain({ versions }: { versions: PromptVersion[] }) {
  const pair = firstAndChosen(versions);
  if (!pair) return null;
  const [first, chosen] = pair;
  const modes = chosen.scores.filter(({ mode }) => first.scores.some((score) => score.mode === mode));
  if (modes.length === 0) return null;
  return (
    <>
      <h2>Did it get better?</h2>
      <div className="table-scroll" tabIndex={0} role="region" aria-label="Did it get better?">
        <table className="table">
          <thead>
            <tr>
              <th scope="col">Reward, 95 % interval</th>
              <th scope="col" className="num">First prompt, {preview(first.id, 40)}</th>
              <th scope="col" className="num">Chosen prompt, {preview(chosen.id, 40)}</th>
              <th scope="col" className="num">Gain, on the same tasks</th>
            </tr>
          </thead>
          <tbody>
            {modes.map((score) => {
              const before = first.scores.find(({ mode }) => mode === score.mode);
              return before && <Row key={score.mode} before={before} after={score} />;
            })}
          </tbody>
        </table>
      </div>
      <p className="muted">
        {modes.some(({ mode }) => mode === "test")
          ? "The search never saw the test tasks. It chose by the validation tasks, so scores on those are too high."
          : "The search chose by these tasks, so the score of the chosen prompt is too high. Test tasks tell: agl eval."}
      </p>
      <h2>What changed</h2>
      <Diff before={first.text} after={chosen.text} label="What changed" />
    </>
  );
}

function Row({ before, after }: { before: SnapshotScore; after: SnapshotScore }) {
  const gain = useGain(before, after);
  return (
    <tr>
      <th scope="row">On {tasksOf(after.mode)}</th>
      {[before, after].map((each, index) => (
        <td key={index} className="num">
          <Score of={each} /> <span className="muted">{count(each.tasks)} tasks</span>
        </td>
      ))}
      <td className="num">{gain && <PairedGainText of={gain} />}</td>
    </tr>
  );
}
