// The server's clock: times of records are from it, and the browser's may differ.
let ahead = 0;

/** Return the server's time, in epoch seconds. */
export function now(): number {
  return Date.now() / 1000 + ahead;
}

/** Note the Date header of a reply. It is in whole seconds, so that a small difference says nothing. */
export function noteDate(header: string | null): void {
  const differs = Date.parse(header ?? "") / 1000 - Date.now() / 1000;
  if (Number.isFinite(differs)) ahead = Math.abs(differs) < 3 ? 0 : differs;
}
