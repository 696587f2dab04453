import { Wrench } from "lucide-react";
import { useMemo, useState } from "react";
import type { ModelCall, Span } from "../api/client";
import { Fold } from "../components/Fold";
import { Empty, Reward } from "../components/parts";
import { NONE, bounded, count, duration, reward, visible } from "../lib/format";
import { isObject } from "../lib/runs";
import { rewardsOfCalls } from "./tree";

interface Message {
  role?: unknown;
  content?: unknown;
  name?: unknown;
  tool_call_id?: unknown;
  tool_calls?: { id?: unknown; function?: { name?: unknown; arguments?: unknown } }[];
}

interface Props {
  calls: ModelCall[] | null;
  spans: Span[];
  onSpan: (id: string) => void;
}

/** The model calls of an attempt as conversations; messages that a call repeats are folded. */
export function Chat({ calls, spans, onSpan }: Props) {
  if (calls === null) {
    return <Empty>This server is of an older version and does not read messages out of spans. The trace shows them.</Empty>;
  }
  if (calls.length === 0) return <Empty>No model calls were recorded in this attempt.</Empty>;
  return <Calls calls={calls} spans={spans} onSpan={onSpan} />;
}

const SHOWN = 100; // calls at first; a long chat opens as fast as a short one

function Calls({ calls, spans, onSpan }: Props & { calls: ModelCall[] }) {
  const [most, setMost] = useState(SHOWN);
  const rewarded = useMemo(() => rewardsOfCalls(calls, spans), [calls, spans]);
  const shared = useMemo(() => sharedPrefixes(calls), [calls]);
  return (
    <div className="chat">
      {calls.slice(0, most).map((call, index) => (
        <Call key={call.span_id} call={call} number={index + 1} repeated={shared[index] ?? 0} rewards={rewarded.get(call.span_id) ?? []} onSpan={onSpan} />
      ))}
      {calls.length > most && (
        <p>
          <button type="button" className="button" onClick={() => setMost(most + SHOWN)}>
            Show {count(Math.min(SHOWN, calls.length - most))} more of {count(calls.length)} calls
          </button>
        </p>
      )}
    </div>
  );
}

interface CallProps {
  call: ModelCall;
  number: number;
  /** Number of its messages that the call before has, too. */
  repeated: number;
  rewards: [name: string, value: number][];
  onSpan: (id: string) => void;
}

function Call({ call, number, repeated, rewards, onSpan }: CallProps) {
  const messages = call.messages as Message[];
  return (
    <article className="call" aria-label={`Call ${number}`}>
      <header>
        <strong>Call {number}</strong>
        <span className="mono">{call.model ?? "unknown model"}</span>
        {call.auxiliary && <span className="tag">auxiliary: {bounded(call.auxiliary, 60)}</span>}
        {call.model_version && <span className="tag">weights {bounded(call.model_version, 60)}</span>}
        <span>{took(call)}</span>
        <span>
          {count(call.input_tokens)} → {count(call.output_tokens)} tokens
        </span>
        {call.finish_reason && call.finish_reason !== "stop" && <span className="tag">{bounded(call.finish_reason, 40)}</span>}
        {rewards.map(([name, value]) => (
          <Reward key={name} value={value} text={`${name === "primary" ? "reward" : bounded(name, 40)} ${reward(value)}`} />
        ))}
        <button type="button" className="link" onClick={() => onSpan(call.span_id)}>
          Span
        </button>
      </header>
      {call.problem && <p className="notice bad">{bounded(call.problem, 1000)}</p>}
      {repeated > 0 && (
        <Fold className="repeated" summary={`${repeated} ${repeated === 1 ? "message" : "messages"} as before`}>
          {() => messages.slice(0, repeated).map((message, position) => <Bubble key={position} message={message} />)}
        </Fold>
      )}
      {messages.slice(repeated).map((message, position) => (
        <Bubble key={position} message={message} />
      ))}
      {call.tokens.length > 0 && <Tokens call={call} />}
    </article>
  );
}

function took(call: ModelCall): string {
  return call.start_time != null && call.end_time != null ? duration(call.end_time - call.start_time) : NONE;
}

function sharedPrefixes(calls: ModelCall[]): number[] {
  let before: string[] = [];
  return calls.map((call) => {
    const texts = call.messages.map((message) => JSON.stringify(message));
    const shared = sharedPrefix(before, texts);
    before = texts;
    return shared;
  });
}

function sharedPrefix(before: string[], now: string[]): number {
  let length = 0;
  // The last message is the answer, which is always shown.
  while (length < Math.min(before.length, now.length - 1) && before[length] === now[length]) length += 1;
  return length;
}

function Bubble({ message }: { message: Message }) {
  const role = String(message.role ?? "unknown");
  return (
    <div className="bubble" data-role={role}>
      <div className="role">
        {role}
        {typeof message.name === "string" && ` · ${bounded(message.name, 60)}`}
      </div>
      <Content value={message.content} />
      {(message.tool_calls ?? []).map((call, index) => (
        <div key={index} className="tool-call">
          <Wrench size={13} aria-hidden />
          <span className="mono">{bounded(String(call.function?.name ?? "tool"), 100)}</span>
          <pre>{bounded(String(call.function?.arguments ?? ""), 20_000)}</pre>
        </div>
      ))}
    </div>
  );
}

function Content({ value }: { value: unknown }) {
  if (value == null || value === "") return null;
  if (typeof value === "string") {
    return (
      <div className="text" dir="auto" tabIndex={value.length > 1000 ? 0 : undefined}>
        {bounded(value)}
      </div>
    );
  }
  if (Array.isArray(value)) {
    return value.map((part: unknown, index) => <Part key={index} part={part} />);
  }
  return <pre>{bounded(JSON.stringify(value, null, 2))}</pre>;
}

/** A part of a message: text, an image that the message holds, or the address of one. */
function Part({ part }: { part: unknown }) {
  const image = imageOf(part);
  if (image === null) return <Content value={textOf(part)} />;
  if (IMAGE.test(image)) return <img src={image} alt="In the message" />;
  // It is not loaded: its host would learn of the reader.
  return <Content value={`[image] ${image.slice(0, 200)}`} />;
}

const IMAGE = /^data:image\/(png|jpeg|gif|webp|avif|bmp|svg\+xml);base64,[A-Za-z0-9+/=\s]+$/;

/** The address of the image that a part holds; null without one. The server gives all images in OpenAI's format. */
function imageOf(part: unknown): string | null {
  const link = isObject(part) ? part["image_url"] : null;
  const url = isObject(link) ? link["url"] : link;
  return typeof url === "string" ? url : null;
}

function textOf(part: unknown): string {
  if (isObject(part) && typeof part["text"] === "string") return part["text"];
  return typeof part === "string" ? part : JSON.stringify(part);
}

/** Sampled tokens, shaded by how unlikely each was. */
function Tokens({ call }: { call: ModelCall }) {
  const known = call.tokens.filter(({ logprob }) => logprob != null);
  const mean = known.reduce((total, { logprob }) => total + (logprob ?? 0), 0) / Math.max(known.length, 1);
  return (
    <Fold className="tokens" summary={`${count(call.tokens.length)} sampled tokens · mean log-probability ${known.length ? mean.toFixed(3) : NONE}`}>
      {() => (
        <>
      <p className="legend" aria-hidden>
        likely <span className="tok" data-shade="0">p ≥ 0.9</span>
        <span className="tok" data-shade="1">≥ 0.5</span>
        <span className="tok" data-shade="2">≥ 0.1</span>
        <span className="tok" data-shade="3">&lt; 0.1</span> unlikely
      </p>
      <div className="token-text" tabIndex={0} role="region" aria-label="Sampled tokens">
        {call.tokens.slice(0, 5000).map(({ token, logprob }, index) => (
          <span
            key={index}
            className="tok"
            data-shade={shade(logprob)}
            title={`${call.response_token_ids[index] ?? "?"} · log-probability ${logprob?.toFixed(4) ?? "unknown"} · p ${logprob == null ? "unknown" : Math.exp(logprob).toFixed(4)}`}
          >
            {visible(token.replaceAll("\n", "↵\n")) || `#${call.response_token_ids[index] ?? "?"}`}
          </span>
        ))}
      </div>
        </>
      )}
    </Fold>
  );
}

function shade(logprob: number | null | undefined): string {
  if (logprob == null) return "none";
  const p = Math.exp(logprob);
  return p >= 0.9 ? "0" : p >= 0.5 ? "1" : p >= 0.1 ? "2" : "3";
}
