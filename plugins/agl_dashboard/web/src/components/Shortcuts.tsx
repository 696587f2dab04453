import { useEffect, useRef } from "react";
import { useNavigate } from "react-router";
import { PAGES } from "../lib/navigation";

const KEYS: [string, string][] = [
  ["/", "Search on this page"],
  ["j  k", "Next and previous row"],
  ["Enter", "Open the row"],
  ["x", "Select the row"],
  ["g then a letter", PAGES.map(({ key, label }) => `${key} ${label}`).join(", ")],
  ["?", "This list"],
];

/** Whether a key press belongs to a field that the reader types in. */
export function isTyping(event: KeyboardEvent): boolean {
  const target = event.target;
  return (
    event.ctrlKey || event.metaKey || event.altKey ||
    (target instanceof HTMLElement && target.closest("input, textarea, select, dialog[open]") !== null)
  );
}

/** Give up the focus: until the next frame, a button of a closed dialog has it and takes the keys. */
function leave(): void {
  if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
}

export function Shortcuts() {
  const dialog = useRef<HTMLDialogElement>(null);
  const navigate = useNavigate();
  useEffect(() => {
    let going = false;
    const pressed = (event: KeyboardEvent): void => {
      if (isTyping(event)) return;
      if (going) {
        going = false;
        const page = PAGES.find(({ key }) => key === event.key);
        if (page) void navigate(page.path);
      } else if (event.key === "g") going = true;
      else if (event.key === "?") dialog.current?.showModal();
      else if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("main input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      }
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [navigate]);
  return (
    <dialog ref={dialog} className="dialog" aria-labelledby="keys-title" onClose={leave}>
      <h2 id="keys-title">Keys</h2>
      <dl className="keys">
        {KEYS.map(([key, meaning]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button type="submit" className="button">
          Close
        </button>
      </form>
    </dialog>
  );
}
