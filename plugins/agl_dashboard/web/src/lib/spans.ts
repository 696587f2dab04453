import type { Span } from "../api/client";

/** The name of a span for people: the operation's, since all spans of `@agl.operation` have one name. */
export function nameOf(span: Pick<Span, "name" | "attributes">): string {
  const operation = span.name === "agentlightning.operation" ? span.attributes["agentlightning.operation.name"] : undefined;
  return typeof operation === "string" && operation ? operation : span.name;
}
