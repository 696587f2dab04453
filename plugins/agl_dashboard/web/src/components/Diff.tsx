import { diffWordsWithSpace } from "diff";
import { useMemo } from "react";
import { bounded } from "../lib/format";

const LONGEST = 50_000; // characters; the comparison takes quadratic time

/** Two texts as one: what was removed and what was added. */
export function Diff({ before, after, label }: { before: string; after: string; label: string }) {
  const parts = useMemo(() => diffWordsWithSpace(before.slice(0, LONGEST), after.slice(0, LONGEST), { timeout: 500 }), [before, after]);
  return (
    <div className="diff" dir="auto" tabIndex={0} role="region" aria-label={label}>
      {parts === undefined ? (
        <>
          <del>{bounded(before, LONGEST)}</del>
          <ins>{bounded(after, LONGEST)}</ins>
        </>
      ) : (
        parts.map(({ value, added, removed }, index) =>
          added ? <ins key={index}>{bounded(value)}</ins> : removed ? <del key={index}>{bounded(value)}</del> : <span key={index}>{bounded(value)}</span>,
        )
      )}
    </div>
  );
}
