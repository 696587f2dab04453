import { Field } from "@base-ui/react/field";
import { useQueryClient } from "@tanstack/react-query";
import type { FormEvent } from "react";
import { SERVER, token } from "../api/client";
import { reconnect, useConnection } from "../api/live";
import { type Settings, settings, useSettings } from "../lib/settings";
import { toast } from "../lib/toast";

export function SettingsPage() {
  const chosen = useSettings();
  const client = useQueryClient();
  const connection = useConnection();
  const save = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const value = new FormData(event.currentTarget).get("token");
    token.set(typeof value === "string" ? value.trim() : "");
    toast("Token saved");
    reconnect();
    void client.resetQueries();
  };
  return (
    <section className="page narrow">
      <h1>Settings</h1>
      <Field.Root className="field" render={<form onSubmit={save} />}>
        <Field.Label>Access token</Field.Label>
        <Field.Description className="muted">
          Needed where the server has one. A token of scope read shows everything and changes nothing: agl store token --scope read. It stays in this browser.
        </Field.Description>
        <div className="field-row">
          <Field.Control name="token" type="password" autoComplete="off" defaultValue={token.get()} />
          <button type="submit" className="button">
            Save
          </button>
        </div>
      </Field.Root>
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
        Server {SERVER}, {connection}. Press ? for the keys. The page is built with <a href="licences.md">these libraries</a>.
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
