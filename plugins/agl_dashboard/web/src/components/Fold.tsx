import { type ReactNode, useState } from "react";

/** What a reader may open; its content is made when it is opened, since a long chat has much of it. */
export function Fold({ className, summary, children }: { className?: string; summary: ReactNode; children: () => ReactNode }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details className={className} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {isOpen && children()}
    </details>
  );
}
