import { Popover } from "@base-ui/react/popover";
import { useIsFetching } from "@tanstack/react-query";
import { Link } from "react-router";
import { type Connection as State, useConnection } from "../api/live";

const WORDS: Record<State, [label: string, detail: string]> = {
  connecting: ["Connecting", "Waiting for the server"],
  live: ["Live", "Changes appear as they happen"],
  polling: ["Polling", "This server sends no events; the page asks again and again"],
  offline: ["Offline", "The server does not answer. The page tries again by itself"],
  unauthorized: ["No access", "The server needs a token, or the token has expired"],
};

/** The state of the connection, busy while the page waits for data; and a notice when there is none. */
export function Connection() {
  const state = useConnection();
  const waits = useIsFetching({ predicate: (query) => query.state.data === undefined }) > 0;
  const [label, detail] = WORDS[state];
  return (
    <>
      <div className="connection" data-state={state} aria-busy={waits} role="status">
        <Popover.Root>
          <Popover.Trigger className="nav-link" openOnHover>
            <span className="dot" aria-hidden />
            <span>{label}</span>
          </Popover.Trigger>
          <Popover.Portal>
            <Popover.Positioner className="floating" sideOffset={6} collisionPadding={8}>
              <Popover.Popup className="popup hint" aria-label="Connection">
                {detail}.
              </Popover.Popup>
            </Popover.Positioner>
          </Popover.Portal>
        </Popover.Root>
      </div>
      {state === "offline" && <p className="notice bad">{detail}.</p>}
      {state === "unauthorized" && (
        <p className="notice bad">
          {detail}. <Link to="/settings">Enter a token</Link>.
        </p>
      )}
    </>
  );
}
