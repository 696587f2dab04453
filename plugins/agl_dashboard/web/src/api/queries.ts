// The queries of the pages. The first part of a key says which events refresh it (live.ts).
import {
  type UseQueryResult,
  keepPreviousData,
  useInfiniteQuery,
  useMutation,
  useQueries,
  useQuery,
  useQueryClient,
} from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import {
  ApiError,
  type Attempt,
  type Batch,
  type BatchCost,
  type BatchGroups,
  type ModelCall,
  type Rollout,
  type RolloutMode,
  type RolloutStatus,
  type Snapshot,
  type PairedGain,
  type SnapshotScore,
  type Span,
  type Summary,
  type Worker,
  api,
  data,
} from "./client";
import { toast } from "../lib/toast";

export const PAGE = 100;
export type Group = BatchGroups["groups"][number];
const OPEN = new Set(["queuing", "preparing", "running", "requeuing"]);

/** Whether a rollout may still get spans. */
export function isOpen(rollout: Rollout | null | undefined): boolean {
  return OPEN.has(rollout?.status ?? "");
}

export interface RolloutFilter {
  status: RolloutStatus[];
  mode: RolloutMode[];
  contains: string;
  /** Only these rollouts; null means any. */
  ids: string[] | null;
  sortBy: string;
  descending: boolean;
}

export interface Page<T> {
  items: T[];
  total: number;
}

const MOST = 10_000; // items of one reply to a token of scope `read`

/** Read a whole list. */
async function whole<T>(read: (range: { limit: number; offset: number }) => Promise<Page<T>>): Promise<T[]> {
  const items: T[] = [];
  for (;;) {
    const page = await read({ limit: MOST, offset: items.length });
    items.push(...page.items);
    if (page.items.length === 0 || items.length >= page.total) return items;
  }
}

function rolloutPage(filter: RolloutFilter, offset: number, limit = PAGE): Promise<Page<Rollout>> {
  return data(
    api.POST("/v1/agl/rollouts/search", {
      body: {
        status_in: filter.status.length ? filter.status : null,
        mode_in: filter.mode.length ? filter.mode : null,
        rollout_id_in: filter.ids,
        rollout_id_contains: filter.contains || null,
        filter_logic: "and",
        sort_by: filter.sortBy,
        sort_order: filter.descending ? "desc" : "asc",
        limit,
        offset,
      },
    }),
  ) as Promise<Page<Rollout>>;
}

export function useRolloutPages(filter: RolloutFilter, pages: number[]): UseQueryResult<Page<Rollout>>[] {
  return useQueries({
    queries: pages.map((page) => ({
      queryKey: ["rollouts", filter, page],
      queryFn: () => rolloutPage(filter, page * PAGE),
      placeholderData: keepPreviousData,
    })),
  });
}

export interface TextSearch {
  /** Rollouts that say the text; null before the first answer. */
  ids: string[] | null;
  searched: number;
  total: number;
  error: unknown;
  searching: boolean;
  /** Search further; undefined when every rollout has been searched. */
  goOn: (() => void) | undefined;
}

const ENOUGH = 40; // found rollouts; then the reader asks for more

/** Rollouts whose task or messages have a text, the newest first; no search without a text. */
export function useTextSearch(text: string): TextSearch {
  const query = useInfiniteQuery({
    queryKey: ["text", text],
    enabled: text !== "",
    initialPageParam: 0,
    queryFn: ({ pageParam }) => data(api.GET("/v1/agl/rollouts/containing", { params: { query: { text, offset: pageParam } } })),
    getNextPageParam: ({ searched, total }) => (searched < total ? searched : undefined),
    refetchOnWindowFocus: false,
  });
  const pages = query.data?.pages;
  const ids = useMemo(() => (pages ? [...new Set(pages.flatMap(({ rollout_ids }) => rollout_ids))] : null), [pages]);
  const { hasNextPage, isFetching, fetchNextPage } = query;
  const found = ids?.length ?? 0;
  useEffect(() => {
    if (hasNextPage && !isFetching && found < ENOUGH) void fetchNextPage();
  }, [hasNextPage, isFetching, found, fetchNextPage]);
  const last = pages?.at(-1);
  return {
    ids,
    searched: last?.searched ?? 0,
    total: last?.total ?? 0,
    error: query.error,
    searching: isFetching,
    goOn: hasNextPage ? () => void fetchNextPage() : undefined,
  };
}

/** Rewards and tokens of rollouts; null where the server is too old to tell. */
export function useSummaries(ids: string[]): Map<string, Summary> | null {
  const query = useQuery({
    queryKey: ["summaries", ids],
    queryFn: async () => {
      const found = await data(api.POST("/v1/agl/rollouts/summaries", { body: { rollout_ids: ids } }));
      return new Map(found.map((item) => [item.rollout_id, item]));
    },
    enabled: ids.length > 0,
    placeholderData: keepPreviousData,
  });
  if (query.error instanceof ApiError && query.error.missing) return null;
  return query.data ?? new Map<string, Summary>();
}

export function useCounts(): UseQueryResult<Record<RolloutStatus, number> | null> {
  return useQuery({
    queryKey: ["counts"],
    queryFn: () =>
      data(api.GET("/v1/agl/rollouts/counts")).catch((error: unknown) => {
        if (error instanceof ApiError && error.missing) return null;
        throw error;
      }),
  });
}

/** Read a rollout as it is now; null if the store has none of this id. */
export function readRollout(id: string): Promise<Rollout | null> {
  return data(api.GET("/v1/agl/rollouts/{rollout_id}", { params: { path: { rollout_id: id } } })) as Promise<Rollout | null>;
}

export function useRollout(id: string): UseQueryResult<Rollout | null> {
  return useQuery({ queryKey: ["rollout", id], enabled: id !== "", queryFn: () => readRollout(id) });
}

export function useAttempts(id: string): UseQueryResult<Attempt[]> {
  return useQuery({
    queryKey: ["rollout", id, "attempts"],
    queryFn: async () =>
      (await data(api.GET("/v1/agl/rollouts/{rollout_id}/attempts", { params: { path: { rollout_id: id } } }))).items,
  });
}

function spanPage(id: string, attempt: string, range: { limit: number; offset?: number }): Promise<Page<Span>> {
  const query = { rollout_id: id, ...range, ...(attempt ? { attempt_id: attempt } : {}) };
  return data(api.GET("/v1/agl/spans", { params: { query } }));
}

/** Read all spans of an attempt, or of a rollout. */
export function readSpans(id: string, attempt = ""): Promise<Span[]> {
  return whole((range) => spanPage(id, attempt, range));
}

const GROWTH_MS = 500;

/** The spans of an attempt; while it runs, new ones appear: no event tells of a span. */
export function useSpans(id: string, attempt: string, runs: boolean): UseQueryResult<Span[]> {
  const spans = useQuery({
    queryKey: ["rollout", id, "spans", attempt],
    queryFn: () => readSpans(id, attempt),
    enabled: id !== "",
  });
  const total = useQuery({
    queryKey: ["span-count", id, attempt],
    queryFn: async () => (await spanPage(id, attempt, { limit: 1 })).total,
    enabled: runs && id !== "",
    refetchInterval: GROWTH_MS,
  }).data;
  const { data: known, dataUpdatedAt, refetch } = spans;
  useEffect(() => {
    // All spans may take longer to read than the next ones to come: a fetch in flight ends before another begins.
    if (runs && total !== undefined && known !== undefined && total > known.length) void refetch({ cancelRefetch: false });
  }, [runs, total, known, dataUpdatedAt, refetch]);
  return spans;
}

/** Model calls among so many spans in one form; null where the server is too old to tell. */
export function useModelCalls(id: string, attempt: string, spans: number): UseQueryResult<ModelCall[] | null> {
  return useQuery({
    queryKey: ["rollout", id, "calls", attempt, spans],
    placeholderData: keepPreviousData,
    queryFn: async () => {
      try {
        const query = { attempt_id: attempt || "latest" };
        const path = { rollout_id: id };
        return (await data(api.GET("/v1/agl/rollouts/{rollout_id}/calls", { params: { path, query } }))).items;
      } catch (error) {
        if (error instanceof ApiError && error.missing) return null;
        throw error;
      }
    },
  });
}

export function useWorkers(): UseQueryResult<Worker[]> {
  return useQuery({
    queryKey: ["workers"],
    queryFn: () => whole((query) => data(api.GET("/v1/agl/workers", { params: { query } }))),
  });
}

export function useSnapshots(): UseQueryResult<Snapshot[]> {
  return useQuery({
    queryKey: ["resources"],
    queryFn: () => whole((query) => data(api.GET("/v1/agl/resources", { params: { query } }))),
  });
}

export interface Training {
  batches: Batch[];
  snapshots: SnapshotScore[];
  complete: boolean;
  read: number;
  total: number;
}

export function useTraining(): UseQueryResult<Training | null> {
  return useQuery({
    queryKey: ["training"],
    queryFn: () =>
      data(api.GET("/v1/agl/training")).catch((error: unknown) => {
        if (error instanceof ApiError && error.missing) return null;
        throw error;
      }) as Promise<Training | null>,
    refetchInterval: ({ state }) => (state.data && !state.data.complete ? 1000 : false),
  });
}

const COSTS_MS = 10_000; // the server reads up to 1,000 rollouts for an answer

/** Calls and tokens of each batch of a run, by the batch's name; null where the server is too old to tell. */
export function useCosts(run: string): Map<string, BatchCost> | null {
  const query = useQuery({
    queryKey: ["costs", run],
    refetchInterval: COSTS_MS,
    queryFn: async () => {
      const { batches } = await data(api.GET("/v1/agl/training/costs", { params: { query: { run } } }));
      return new Map(batches.map((each) => [each.batch, each]));
    },
    placeholderData: keepPreviousData,
  });
  return query.data ?? null;
}

/** The rollouts of one batch by task; null where the server is too old to tell. */
export function useGroups(run: string, batch: string): UseQueryResult<BatchGroups | null> {
  return useQuery({
    queryKey: ["training", "groups", run, batch],
    queryFn: () =>
      data(api.GET("/v1/agl/training/groups", { params: { query: { run, batch } } })).catch((error: unknown) => {
        if (error instanceof ApiError && error.missing) return null;
        throw error;
      }),
  });
}

/** The gain of one score's snapshot over another's, paired by task; null where the server is too old to tell. */
export function useGain(before: SnapshotScore, after: SnapshotScore): PairedGain | null {
  const query = { before: before.resources_id, after: after.resources_id, ...(after.mode && { mode: after.mode }) };
  const found = useQuery({
    queryKey: ["training", "gain", query],
    queryFn: () =>
      data(api.GET("/v1/agl/training/gain", { params: { query } })).catch((error: unknown) => {
        if (error instanceof ApiError && error.missing) return null;
        throw error;
      }),
    placeholderData: keepPreviousData,
  });
  return found.data ?? null;
}

/**
 * Cancel open rollouts or queue ended ones again, one after another, and leave the others as they are.
 * The error of the first refusal is thrown.
 */
export function useSetStatus() {
  const client = useQueryClient();
  return useMutation({
    mutationFn: async ({ ids, status }: { ids: string[]; status: "cancelled" | "requeuing" }) => {
      let changed = 0;
      for (const id of ids) {
        // It may have ended, or begun again, since the reader chose it.
        const rollout = await readRollout(id);
        if (rollout && isOpen(rollout) !== (status === "cancelled")) continue;
        await data(api.POST("/v1/agl/rollouts/{rollout_id}", { params: { path: { rollout_id: id } }, body: { status } }));
        changed += 1;
      }
      return changed;
    },
    // Not beside the call of `mutate`: that is dropped when the button leaves with the old status.
    onSuccess: (changed, { ids, status }) => {
      const [done, unfit] = status === "cancelled" ? ["Cancelled", "had ended"] : ["Requeued", "had not ended"];
      const left = ids.length - changed;
      toast(`${done} ${changed}${left > 0 ? `; ${left} ${unfit}` : ""}`);
    },
    onSettled: () => client.invalidateQueries(),
  });
}
