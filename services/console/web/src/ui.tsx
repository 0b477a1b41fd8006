// Building blocks of pages: tables, facts, badges, command lines, pagers.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Row, Value } from "./api";
import { count, readable } from "./format";
import { useShared, type ReadState } from "./hooks";
import { label, text } from "./texts";

const GOOD = new Set(["healthy", "up", "serving", "live", "done", "allow", "acked", "idle"]);
const BAD = new Set(["down", "leaderless", "failed", "unreachable", "deny", "dead-lettered", "stop"]);

export function Badge({ value }: { value: string }): JSX.Element {
  const word = value.toLowerCase();
  const kind = GOOD.has(word) ? "good" : BAD.has(word) ? "bad" : "fair";
  return <span class={`badge ${kind}`}>{value || "-"}</span>;
}

/** The command line that shows, or does, the same. */
export function Command({ line }: { line: string }): JSX.Element | null {
  const [copied, setCopied] = useState(false);
  if (!line) return null;
  const copy = (): void => {
    navigator.clipboard
      ?.writeText(line)
      .then(() => setCopied(true))
      .catch(() => setCopied(false));
  };
  return (
    <div class="command">
      <code>{line}</code>
      <button type="button" class="small" onClick={copy}>
        {text(copied ? "word.copied" : "word.copy")}
      </button>
    </div>
  );
}

export interface Column {
  key: string;
  title?: string;
  show?: (row: Row) => ComponentChildren;
  number?: boolean;
  sort?: boolean;
}

export interface TableProps {
  name: string;
  rows: Row[];
  columns: (Column | string)[];
  sort?: string;
  descending?: boolean;
  onSort?: (key: string) => void;
}

export function Table({ name, rows, columns, sort, descending, onSort }: TableProps): JSX.Element {
  const all = columns.map((each) => (typeof each === "string" ? { key: each } : each) as Column);
  if (!rows.length) return <p class="empty">{text("word.none")}</p>;
  const isNumber = (column: Column): boolean =>
    column.number ?? (typeof rows[0]?.[column.key] === "number" && !column.key.endsWith("_ms"));
  const order = (column: Column): "ascending" | "descending" | "none" =>
    sort !== column.key ? "none" : descending ? "descending" : "ascending";
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={name}>
      <table>
        <thead>
          <tr>
            {all.map((column) => (
              <th
                key={column.key}
                scope="col"
                class={isNumber(column) ? "number" : ""}
                aria-sort={column.sort ? order(column) : undefined}
              >
                {column.sort && onSort ? (
                  <button type="button" class="sort" onClick={() => onSort(column.key)}>
                    {column.title ?? label(column.key)}
                    {sort === column.key ? (descending ? " ▾" : " ▴") : ""}
                  </button>
                ) : (
                  (column.title ?? label(column.key))
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, at) => (
            <tr key={at} data-row>
              {all.map((column) => (
                <td key={column.key} class={isNumber(column) ? "number" : ""}>
                  {column.show ? column.show(row) : shown(column.key, row[column.key])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function shown(key: string, value: Value | undefined): ComponentChildren {
  if ((key === "state" || key === "status" || key === "severity") && typeof value === "string")
    return <Badge value={value} />;
  return readable(key, value);
}

/** Names and values. */
export function Facts({ row, keys }: { row: Row; keys?: string[] }): JSX.Element {
  return (
    <dl class="facts">
      {(keys ?? Object.keys(row)).map((key) => (
        <div key={key}>
          <dt>{label(key)}</dt>
          <dd>{shown(key, row[key])}</dd>
        </div>
      ))}
    </dl>
  );
}

interface SectionProps {
  title: string;
  children: ComponentChildren;
  actions?: ComponentChildren;
}

export function Section({ title, children, actions }: SectionProps): JSX.Element {
  return (
    <section>
      <div class="head">
        <h2>{title}</h2>
        <div class="actions">{actions}</div>
      </div>
      {children}
    </section>
  );
}

/** A read's content, or why there is none, with its command line. */
export function Shown<T>(props: {
  read: ReadState<T>;
  children: (data: T) => ComponentChildren;
}): JSX.Element {
  const { read, children } = props;
  if (read.failure) return <Failed message={read.failure.message} status={read.failure.status} />;
  if (!read.data) return <p class="empty">{text("word.loading")}</p>;
  return (
    <>
      {children(read.data)}
      <Command line={read.command} />
    </>
  );
}

export function Failed({ message, status }: { message: string; status: number }): JSX.Element {
  return (
    <p class="failed" role="alert">
      {status === 403 ? `${text("word.forbidden")}: ${message}` : message}
    </p>
  );
}

export interface ActButtonProps {
  act: string;
  values?: Record<string, string>;
  after?: () => void;
}

export function ActButton({ act, values, after }: ActButtonProps): JSX.Element {
  const shared = useShared();
  const danger = shared.acts.get(act)?.danger ?? false;
  return (
    <button
      type="button"
      class={danger ? "small danger" : "small"}
      onClick={() => shared.open(act, values, after)}
    >
      {text(`act.${act}`)}
    </button>
  );
}

export interface PagerProps {
  first: number;
  size: number;
  total: number;
  onMove: (first: number) => void;
}

export function Pager({ first, size, total, onMove }: PagerProps): JSX.Element {
  const last = Math.min(first + size, total);
  return (
    <div class="pager">
      <button type="button" disabled={first <= 0} onClick={() => onMove(Math.max(0, first - size))}>
        {text("word.previous")}
      </button>
      <span role="status">
        {text("word.range", {
          first: count(total ? first + 1 : 0),
          last: count(last),
          total: count(total),
        })}
      </span>
      <button type="button" disabled={last >= total} onClick={() => onMove(first + size)}>
        {text("word.next")}
      </button>
    </div>
  );
}

export interface InputProps {
  name: string;
  value: string;
  onChange: (value: string) => void;
  type?: string;
  focus?: boolean;
}

/** A labelled input that tells its value when one pauses or presses Enter. */
export function Input({ name, value, onChange, type, focus }: InputProps): JSX.Element {
  return (
    <label class="input">
      <span>{text(`field.${name}`)}</span>
      <input
        type={type ?? "text"}
        name={name}
        value={value}
        data-search={focus ? true : undefined}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
    </label>
  );
}

export function namespaced(namespace: Value | undefined, name: Value | undefined): string {
  return namespace ? `${namespace}/${name}` : String(name ?? "");
}
