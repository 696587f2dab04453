import { Tooltip } from "@base-ui/react/tooltip";
import { type ReactElement, type ReactNode, useRef } from "react";

const shared = Tooltip.createHandle<string>();

/** A link or button that shows a text while the pointer is over it or it has the focus. */
export function Hint({ text, children }: { text: string; children: ReactElement }) {
  return <Tooltip.Trigger handle={shared} payload={text} render={children} />;
}

/** The tooltip that all hints of the page share. It is rendered here, since text outside of landmarks is easily missed with a screen reader. */
export function Hints() {
  const here = useRef<HTMLDivElement>(null);
  return (
    <div ref={here}>
      <Tooltip.Root handle={shared}>
        {({ payload }) => (
          <Tooltip.Portal container={here}>
            <Tooltip.Positioner className="floating" positionMethod="fixed" sideOffset={6}>
              <Tooltip.Popup className="popup hint">{payload}</Tooltip.Popup>
            </Tooltip.Positioner>
          </Tooltip.Portal>
        )}
      </Tooltip.Root>
    </div>
  );
}

interface IconButtonProps {
  label: string;
  className?: string;
  onClick: () => void;
  children: ReactNode;
}

/** A button that has an icon alone; a hint names it. */
export function IconButton({ label, className = "", onClick, children }: IconButtonProps) {
  return (
    <Hint text={label}>
      <button type="button" className={`icon-button ${className}`} aria-label={label} onClick={onClick}>
        {children}
      </button>
    </Hint>
  );
}
