import { Dialog } from "@base-ui/react/dialog";
import { useEffect, useState } from "react";
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
    (target instanceof HTMLElement && target.closest("input, textarea, select, [role$=dialog][data-open]") !== null)
  );
}

export function Shortcuts() {
  const [isOpen, setOpen] = useState(false);
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
      else if (event.key === "?") setOpen(true);
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
    <Dialog.Root open={isOpen} onOpenChange={setOpen}>
      <Dialog.Portal>
        <Dialog.Backdrop className="backdrop" />
        <Dialog.Popup className="popup dialog">
          <Dialog.Title>Keys</Dialog.Title>
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
          <div className="actions">
            <Dialog.Close className="button">Close</Dialog.Close>
          </div>
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
