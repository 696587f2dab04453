import { useQueryClient } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { SERVER, token } from "../api/client";
import { reconnect, useConnection } from "../api/live";
import { type Settings, settings, useSettings } from "../lib/settings";

export function SettingsPage() {
  const chosen = useSettings();
  const client = useQueryClient();
  const connection = useConnection();
  const [said, setSaid] = useState("");
  const save = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const value = new FormData(event.currentTarget).get("token");
    token.set(typeof value === "string" ? value.trim() : "");
    setSaid("Saved");
    reconnect();
    void client.resetQueries();
  };
  return (
    <section className="page narrow">
      <h1>Settings</h1>
      <form className="field" onSubmit={save}>
        <label htmlFor="token">Access token</label>
        <p className="muted">
          Needed where the server has one. A token of scope read shows everything and changes nothing: agl store token --scope read. It stays in this browser.
        </p>
        <div className="field-row">
          <input id="token" name="token" type="password" autoComplete="off" defaultValue={token.get()} />
          <button type="submit" className="button">
            Save
          </button>
          <span role="status" className="muted">
            {said}
          </span>
        </div>
      </form>
      <Choice
        label="Appearance"
        value={chosen.theme}
        options={[["system", "As the system"], ["light", "Light"], ["dark", "Dark"]]}
        onChange={(theme) => settings.set({ theme: theme as Settings["theme"] })}
      />
      <Choice
        label="Time zone"
        value={chosen.timeZone}
        options={[["local", "This computer's"], ["utc", "UTC"]]}
        onChange={(timeZone) => settings.set({ timeZone: timeZone as Settings["timeZone"] })}
      />
      <Choice
        label="Refresh without events"
        value={String(chosen.refreshSeconds)}
        options={[["1", "1 second"], ["2", "2 seconds"], ["5", "5 seconds"], ["30", "30 seconds"]]}
        onChange={(seconds) => settings.set({ refreshSeconds: Number(seconds) })}
      />
      <p className="muted">
        Server {SERVER}, {connection}. Press ? for the keys.
      </p>
    </section>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: [value: string, label: string][];
  onChange: (value: string) => void;
}

function Choice({ label, value, options, onChange }: ChoiceProps) {
  return (
    <div className="field">
      <label className="select wide">
        {label}
        <select value={value} onChange={(event) => onChange(event.target.value)}>
          {options.map(([option, name]) => (
            <option key={option} value={option}>
              {name}
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}
