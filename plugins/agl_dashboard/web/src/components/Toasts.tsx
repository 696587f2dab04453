import { Toast } from "@base-ui/react/toast";
import { X } from "lucide-react";
import { messages } from "../lib/toast";

export function Toasts() {
  return (
    <Toast.Provider toastManager={messages}>
      <Toast.Portal>
        <Toast.Viewport className="toasts">
          <Shown />
        </Toast.Viewport>
      </Toast.Portal>
    </Toast.Provider>
  );
}

function Shown() {
  return Toast.useToastManager().toasts.map((each) => (
    <Toast.Root key={each.id} toast={each} className="popup toast">
      <Toast.Title className="toast-title" />
      <Toast.Close className="icon-button" aria-label="Close message">
        <X size={14} aria-hidden />
      </Toast.Close>
    </Toast.Root>
  ));
}
