import { Link } from "react-router";
import { type Group, useGroups } from "../api/queries";
import { Hint } from "../components/Hint";
import { Empty, Problem, Reward } from "../components/parts";
import { NONE, count, counts, preview, reward, task } from "../lib/format";

const SHOWN = 200;

/** The rollouts of one batch by task: every reward of a group on one scale. */
export function Groups({ run, batch }: { run: string; batch: string }) {
  const { data: found, error } = useGroups(run, batch);
  if (error) return <Problem error={error} />;
  if (!found) return found === null ? null : <Empty>Reading groups…</Empty>;
  const rewards = found.groups.flatMap(({ rollouts }) => rollouts.map(earned)).filter((value) => value !== null);
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const even = found.groups.filter(({ reward_std }) => reward_std === 0).length;
  return (
    <section aria-label="Groups">
      <div className="page-head">
        <h2>Groups of {batch || "the batch without a name"}</h2>
        <span className="muted">
          {count(found.groups.length)} tasks, {count(found.rollouts)} rollouts
          {even > 0 && `; all rewards are equal in ${count(even)}`}
        </span>
      </div>
      <div className="table-scroll" tabIndex={0} role="region" aria-label="Groups of the batch">
        <table className="table">
          <thead>
            <tr>
              <th scope="col">Task</th>
              <th scope="col" className="num">Rollouts</th>
              <th scope="col" className="num">Mean</th>
              <th scope="col" className="num">Std. dev.</th>
              <th scope="col">Rewards</th>
            </tr>
          </thead>
          <tbody>
            {found.groups.slice(0, SHOWN).map((group) => (
              <tr key={group.rollouts[0]?.rollout_id}>
                <th scope="row" dir="auto">
                  {task(group.task, 70)}
                </th>
                <td className="num">{count(group.rollouts.length)}</td>
                <td className="num">
                  <Reward value={group.reward_mean} text={reward(group.reward_mean)} />
                </td>
                <td className="num">{reward(group.reward_std)}</td>
                <td>
                  <Members group={group} low={low} high={high} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.groups.length > SHOWN && <p className="muted">The first {count(SHOWN)} are shown.</p>}
    </section>
  );
}

type Member = Group["rollouts"][number];

/** The reward of a rollout that counts; null for one that failed, whatever it emitted before. */
function earned({ reward: value, status }: Member): number | null {
  return counts(status) ? (value ?? null) : null;
}

function why({ status, infrastructure }: Member): string {
  return infrastructure ? `the ${preview(infrastructure, 40)} failed it, not the agent` : status;
}

/** The rewards of a group, each a link to its rollout. */
function Members({ group, low, high }: { group: Group; low: number; high: number }) {
  const at = (value: number): number => (high > low ? ((value - low) / (high - low)) * 100 : 50);
  return (
    <span className="members">
      {group.rollouts.map((member) => {
        const { rollout_id } = member;
        const value = earned(member);
        const text = value === null ? why(member) : `reward ${reward(value)}`;
        return (
          <Hint key={rollout_id} text={`${rollout_id}: ${text}`}>
            <Link to={`/rollouts/${encodeURIComponent(rollout_id)}`} aria-label={`${rollout_id}, ${text}`}>
              <span className="member-bar" style={{ height: value === null ? "0" : `${Math.max(4, at(value))}%` }} />
              <span className={value === null && member.status === "failed" ? "member-text bad-text" : "member-text"}>
                {value !== null ? reward(value) : member.status === "failed" ? (member.infrastructure ? "lost" : "failed") : NONE}
              </span>
            </Link>
          </Hint>
        );
      })}
    </span>
  );
}
