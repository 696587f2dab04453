// The state of a page, kept in its URL, so that links and the back button hold it.
import { useCallback } from "react";
import { useSearchParams } from "react-router";

// To choose the run or the batch that has no name is not the same as to choose none.
const NAMES = new Set(["run", "batch"]);

/** Return the query's values, and a function that changes some; null and empty texts that are no name leave the URL. */
export function useUrl(): [URLSearchParams, (change: Record<string, string | null>, replace?: boolean) => void] {
  const [params, setParams] = useSearchParams();
  const change = useCallback(
    (values: Record<string, string | null>, replace = false) => {
      // The address, not `params`: a change may come before the last one is drawn.
      const next = new URLSearchParams(window.location.search);
      for (const [name, value] of Object.entries(values)) {
        if (value || (value === "" && NAMES.has(name))) next.set(name, value);
        else next.delete(name);
      }
      setParams(next, { replace });
    },
    [setParams],
  );
  return [params, change];
}
