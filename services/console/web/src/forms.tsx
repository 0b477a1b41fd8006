// The form of an act: its inputs, its command line while one types, a dry run, its result.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { api, type Act, type Failure, type Field, type Row } from "./api";
import { text } from "./texts";
import { Command, Facts, Failed, Table } from "./ui";

const SEND = "message-send";
const ENCODINGS = ["text", "base64", "hex"];
const PAUSE_MS = 200;

export interface ActDialogProps {
  act: Act;
  values: Record<string, string>;
  onClose: (isDone: boolean) => void;
}

type Values = Record<string, string | boolean>;

export function ActDialog({ act, values: given, onClose }: ActDialogProps): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [values, setValues] = useState<Values>(() => initial(act, given));
  const [line, setLine] = useState("");
  const [failure, setFailure] = useState<Failure>();
  const [result, setResult] = useState<Row>();
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState(false);

  useEffect(() => dialog.current?.showModal(), []);
  useEffect(() => {
    let current = true;
    if (act.fields.some((field) => field.required && !values[field.name])) {
      setLine("");
      return undefined;
    }
    const timer = setTimeout(() => {
      api
        .preview(act.name, given_values(values), false)
        .then((found) => current && setLine(found.command))
        .catch(() => current && setLine(""));
    }, PAUSE_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [JSON.stringify(values)]);

  const run = (dryRun: boolean): void => {
    setBusy(true);
    setFailure(undefined);
    setResult(undefined);
    api
      .act(act.name, given_values(values), dryRun)
      .then((answer) => {
        setResult(answer.result);
        setLine(answer.command);
        setDone(done || !dryRun);
      })
      .catch(setFailure)
      .finally(() => setBusy(false));
  };
  const set = (name: string) => (value: string | boolean) =>
    setValues({ ...values, [name]: value });
  const title = text(`act.${act.name}`);

  return (
    <dialog ref={dialog} aria-label={title} onClose={() => onClose(done)}>
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          if (!busy) run(false);
        }}
      >
        <h2>{title}</h2>
        {act.namespace && (
          <Input
            field={{ ...EMPTY, name: "namespace" }}
            value={values.namespace ?? ""}
            onChange={set("namespace")}
          />
        )}
        {act.fields.map((field) => (
          <Input
            key={field.name}
            field={field}
            value={values[field.name] ?? ""}
            onChange={set(field.name)}
          />
        ))}
        {act.name === SEND && (
          <Input
            field={{ ...EMPTY, name: "body_encoding", kind: "choice", choices: ENCODINGS }}
            value={values.body_encoding ?? "text"}
            onChange={set("body_encoding")}
          />
        )}
        <Command line={line} />
        {failure && <Failed message={failure.message} status={failure.status} />}
        {result && <Result row={result} done={done} />}
        <div class="buttons">
          {act.dry_run && (
            <button type="button" disabled={busy} onClick={() => run(true)}>
              {text("word.dry_run")}
            </button>
          )}
          <button type="submit" class={act.danger ? "danger" : "primary"} disabled={busy}>
            {title}
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            {text("word.close")}
          </button>
        </div>
      </form>
    </dialog>
  );
}

const EMPTY: Field = {
  name: "",
  kind: "text",
  option: "",
  required: false,
  choices: [],
  default: "",
};

function initial(act: Act, given: Record<string, string>): Values {
  const defaults = act.fields.map((field) => [
    field.name,
    given[field.name] ?? (field.kind === "flag" ? false : field.default),
  ]);
  return { ...Object.fromEntries(defaults), ...(given.namespace ? { namespace: given.namespace } : {}) };
}

/** The values that are given: an empty input leaves the command's default. */
function given_values(values: Values): Row {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
}

interface InputProps {
  field: Field;
  value: string | boolean;
  onChange: (value: string | boolean) => void;
}

function Input({ field, value, onChange }: InputProps): JSX.Element {
  const id = `field-${field.name}`;
  const shared = { id, name: field.name, required: field.required };
  const hint = text(`kind.${field.kind}`);
  const label = (
    <label for={id}>
      {text(`field.${field.name}`)}
      {field.required && <span aria-hidden="true"> *</span>}
    </label>
  );
  if (field.kind === "flag")
    return (
      <div class="field flag">
        <input
          id={id}
          name={field.name}
          type="checkbox"
          checked={value === true}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
        {label}
      </div>
    );
  if (field.kind === "choice")
    return (
      <div class="field">
        {label}
        <select
          {...shared}
          value={String(value)}
          onChange={(event) => onChange(event.currentTarget.value)}
        >
          {!field.required && !field.default && field.name !== "body_encoding" && (
            <option value="">-</option>
          )}
          {field.choices.map((choice) => (
            <option key={choice} value={choice}>
              {choice}
            </option>
          ))}
        </select>
      </div>
    );
  if (field.kind === "long" || field.kind === "texts")
    return (
      <div class="field">
        {label}
        <textarea
          {...shared}
          rows={field.kind === "long" ? 5 : 2}
          placeholder={hint}
          value={String(value)}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      </div>
    );
  return (
    <div class="field">
      {label}
      <input
        {...shared}
        placeholder={hint}
        inputMode={field.kind === "number" ? "numeric" : undefined}
        autocomplete="off"
        spellcheck={false}
        value={String(value)}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </div>
  );
}

/** Whatever a command gives: facts, and a table for each list of rows. */
function Result({ row, done }: { row: Row; done: boolean }): JSX.Element {
  const isList = (key: string): boolean =>
    Array.isArray(row[key]) && typeof (row[key] as Row[])[0] === "object";
  const lists = Object.keys(row).filter(isList);
  const facts = Object.keys(row).filter((key) => !isList(key));
  return (
    <div class="result" role="status">
      <strong>{text(done ? "word.done" : "word.would")}</strong>
      <Facts row={row} keys={facts} />
      {lists.map((key) => (
        <Table
          key={key}
          name={key}
          rows={row[key] as Row[]}
          columns={Object.keys((row[key] as Row[])[0] ?? {})}
        />
      ))}
    </div>
  );
}
