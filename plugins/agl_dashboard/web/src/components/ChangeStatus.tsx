import { AlertDialog } from "@base-ui/react/alert-dialog";
import { RotateCcw, XCircle } from "lucide-react";
import { useState } from "react";
import { useSetStatus } from "../api/queries";
import { count } from "../lib/format";
import { Problem } from "./parts";

const CHANGES = {
  cancelled: {
    verb: "Cancel",
    icon: XCircle,
    effect: "A runner stops at its next heartbeat. Spans stay in the store.",
  },
  requeuing: {
    verb: "Retry",
    icon: RotateCcw,
    effect: "A runner starts a new attempt, which calls the model again. Earlier attempts stay in the store.",
  },
};

/** A button that cancels or retries rollouts after the reader has confirmed it. */
export function ChangeStatus({ ids, to }: { ids: string[]; to: keyof typeof CHANGES }) {
  const { verb, icon: Icon, effect } = CHANGES[to];
  const [isOpen, setOpen] = useState(false);
  const setStatus = useSetStatus();
  const what = ids.length === 1 ? "rollout" : `${count(ids.length)} rollouts`;
  const open = (next: boolean): void => {
    setOpen(next);
    setStatus.reset();
  };
  return (
    <AlertDialog.Root open={isOpen} onOpenChange={open}>
      <AlertDialog.Trigger className="button">
        <Icon size={14} aria-hidden /> {verb}
      </AlertDialog.Trigger>
      <AlertDialog.Portal>
        <AlertDialog.Backdrop className="backdrop" />
        <AlertDialog.Popup className="popup dialog">
          <AlertDialog.Title>
            {verb} {what}?
          </AlertDialog.Title>
          <AlertDialog.Description>{effect}</AlertDialog.Description>
          <Problem error={setStatus.error} />
          <div className="actions">
            <AlertDialog.Close className="button">Back</AlertDialog.Close>
            <button
              type="button"
              className="button"
              disabled={setStatus.isPending}
              onClick={() => setStatus.mutate({ ids, status: to }, { onSuccess: () => setOpen(false) })}
            >
              {verb} {what}
            </button>
          </div>
        </AlertDialog.Popup>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
