// Short messages in a corner of the page, which leave by themselves.
import { Toast } from "@base-ui/react/toast";

export const messages = Toast.createToastManager();

/** Tell the reader that something is done. */
export function toast(title: string): void {
  messages.add({ title });
}
