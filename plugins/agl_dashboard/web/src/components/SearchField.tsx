import { Search } from "lucide-react";
import { useEffect, useRef, useState } from "react";

/** A search field that waits for a pause in typing. */
export function SearchField({ label, value, onChange }: { label: string; value: string; onChange: (value: string) => void }) {
  const [text, setText] = useState(value);
  const sent = useRef<string[]>([]); // given to onChange, and not yet returned as the value
  const report = useRef(onChange);
  report.current = onChange;
  useEffect(() => {
    const place = sent.current.indexOf(value);
    sent.current.splice(0, place + 1);
    // What this field has sent returns late and must not undo what was typed since.
    if (place < 0) setText(value);
  }, [value]);
  useEffect(() => {
    if (text === value) return;
    const timer = setTimeout(() => {
      sent.current.push(text);
      report.current(text);
    }, 200);
    return () => clearTimeout(timer);
  }, [text, value]);
  return (
    <div className="search">
      <Search size={14} aria-hidden />
      <input type="search" aria-label={label} placeholder={label} value={text} onChange={(event) => setText(event.target.value)} />
    </div>
  );
}
