// Messages: by id, key, place, time, or the newest; a message with its trace; the live tail; produce.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { listen, search, type Failure, type Row } from "../api";
import { bytesOf, hexDump, prettyJson, size, time } from "../format";
import { go, href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, Badge, Command, Facts, Failed, Input, Section, Shown, Table } from "../ui";

const MAX_TAIL = 500;

interface Found {
  messages: Row[];
  next_page: string;
}

export function MessagesPage({ route }: { route: Route }): JSX.Element {
  const { params } = route;
  const [form, setForm] = useState<Record<string, string>>(params);
  useEffect(() => setForm(params), [JSON.stringify(params)]);
  const set = (name: string) => (value: string) => setForm({ ...form, [name]: value });
  const filtered = ["id", "key", "offset", "from", "to", "tag"].some((name) => params[name]);
  const read = useRead<Found>(params.topic ? (filtered ? "messages" : "latest") : "", params);
  const topic = { topic: params.topic ?? "", namespace: params.namespace ?? "" };
  return (
    <Section
      title={text("nav.messages")}
      actions={<ActButton act="message-send" values={topic} after={read.again} />}
    >
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          go("messages", { ...form, page: "" });
        }}
      >
        {["topic", "namespace", "id", "key", "offset", "from", "to", "tag"].map((name) => (
          <Input
            key={name}
            name={name}
            value={form[name] ?? ""}
            focus={name === "topic"}
            onChange={set(name)}
          />
        ))}
        <button type="submit" class="primary">
          {text("word.find")}
        </button>
        {params.topic && <a href={href("tail", topic)}>{text("nav.tail")}</a>}
      </form>
      {params.topic ? (
        <Shown read={read}>
          {(data) => (
            <>
              <MessageList messages={data.messages} namespace={topic.namespace} />
              {data.next_page && (
                <a href={href("messages", { ...params, page: data.next_page })}>{text("word.next")}</a>
              )}
            </>
          )}
        </Shown>
      ) : (
        <p class="empty">{text("messages.choose")}</p>
      )}
    </Section>
  );
}

export function MessageList(props: { messages: Row[]; namespace: string }): JSX.Element {
  const { messages, namespace } = props;
  const [chosen, setChosen] = useState<string>();
  const key = (row: Row): string => `${row.queue}:${row.offset}:${row.message_id}`;
  const open = messages.find((row) => key(row) === chosen);
  return (
    <>
      <Table
        name={text("nav.messages")}
        rows={messages}
        columns={[
          {
            key: "message_id",
            show: (row) => (
              <button
                type="button"
                class="link mono"
                aria-expanded={chosen === key(row)}
                onClick={() => setChosen(chosen === key(row) ? undefined : key(row))}
              >
                {String(row.message_id)}
              </button>
            ),
          },
          "store_time_ms",
          "tag",
          "keys",
          { key: "body", show: (row) => <span class="clip">{preview(row)}</span> },
          "queue",
          "offset",
          ...(messages.some((row) => row.redriven !== undefined) ? ["redriven"] : []),
        ]}
      />
      {open && <Message message={open} namespace={namespace} />}
    </>
  );
}

function preview(row: Row): string {
  return row.body === null ? text("messages.binary") : String(row.body).slice(0, 120);
}

type Form = "text" | "json" | "hex";

export function Message({ message, namespace }: { message: Row; namespace: string }): JSX.Element {
  const bytes = bytesOf(String(message.body_base64 ?? ""));
  const json = message.body === null ? null : prettyJson(String(message.body));
  const [chosen, setForm] = useState<Form>();
  const form = chosen ?? (message.body === null ? "hex" : json === null ? "text" : "json");
  const shown = form === "hex" ? hexDump(bytes) : form === "json" ? json : String(message.body);
  const forms: Form[] = ["text", "json", "hex"];
  const usable = (each: Form): boolean =>
    each === "hex" || (each === "json" ? json !== null : message.body !== null);
  return (
    <div class="inner">
      <h3 class="mono">{String(message.message_id)}</h3>
      <Facts
        row={message}
        keys={Object.keys(message).filter((key) => !["body", "body_base64", "properties"].includes(key))}
      />
      <h4>
        {text("messages.body")} ({size(bytes.length)})
      </h4>
      <div class="actions" role="group" aria-label={text("messages.body")}>
        {forms.filter(usable).map((each) => (
          <button
            key={each}
            type="button"
            class="small"
            aria-pressed={form === each}
            onClick={() => setForm(each)}
          >
            {text(`messages.${each}`)}
          </button>
        ))}
      </div>
      <pre tabIndex={0}>{shown}</pre>
      <h4>{text("messages.properties")}</h4>
      <Facts row={(message.properties as Row) ?? {}} />
      <Trace message={message} namespace={namespace} />
    </div>
  );
}

interface Traced extends Row {
  steps: Row[];
}

function Trace({ message, namespace }: { message: Row; namespace: string }): JSX.Element {
  const topic = String(message.topic);
  const original = (message.dead_letter_of as Row | undefined)?.message_id ?? message.message_id;
  // The place of a dead letter is in the dead-letter topic; its trace is where it came from.
  const place =
    message.redriven === undefined
      ? { offset: `${message.queue}:${message.offset}` }
      : { id: String(original) };
  const read = useRead<Traced>("trace", { topic, namespace, ...place });
  return (
    <>
      <h4>{text("messages.trace")}</h4>
      <Shown read={read}>{(data) => <Timeline traced={data} />}</Shown>
    </>
  );
}

function Timeline({ traced }: { traced: Traced }): JSX.Element {
  const steps: Row[] = [
    { time_ms: traced.born_time_ms ?? 0, what: "sent", client_id: traced.sent_by ?? "" },
    { time_ms: traced.store_time_ms ?? 0, what: "stored" },
    ...traced.steps,
  ];
  const first = Number(steps[0]?.time_ms);
  return (
    <ol class="timeline">
      {steps.map((step, at) => (
        <li key={at}>
          <time>{time(Number(step.time_ms))}</time>
          <span class="offset">+{Math.max(0, Number(step.time_ms) - first)} ms</span>
          <Badge value={String(step.what)} />
          {step.consumer_group && <span>{String(step.consumer_group)}</span>}
          {step.attempt && <span>{text("messages.attempt", { number: String(step.attempt) })}</span>}
          {step.client_id && <span class="mono">{String(step.client_id)}</span>}
        </li>
      ))}
    </ol>
  );
}

export function TailPage({ route }: { route: Route }): JSX.Element {
  const { topic = "", namespace = "", tag = "" } = route.params;
  const [form, setForm] = useState<Record<string, string>>({ topic, namespace, tag });
  const [messages, setMessages] = useState<Row[]>([]);
  const [failure, setFailure] = useState<Failure>();
  const [paused, setPaused] = useState(false);
  const [line, setLine] = useState("");
  useEffect(() => {
    if (!topic || paused) return undefined;
    setFailure(undefined);
    return listen<Row[]>(
      `/api/tail${search({ topic, namespace, tag })}`,
      (found) => setMessages((before) => [...found.reverse(), ...before].slice(0, MAX_TAIL)),
      setFailure,
      setLine,
    );
  }, [topic, namespace, tag, paused]);
  return (
    <Section
      title={text("nav.tail")}
      actions={
        <>
          <button type="button" class="small" aria-pressed={paused} onClick={() => setPaused(!paused)}>
            {text(paused ? "word.resume" : "word.pause")}
          </button>
          <button type="button" class="small" onClick={() => setMessages([])}>
            {text("word.clear")}
          </button>
          <ActButton act="message-send" values={{ topic, namespace }} />
        </>
      }
    >
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          setMessages([]);
          go("tail", form);
        }}
      >
        {["topic", "namespace", "tag"].map((name) => (
          <Input
            key={name}
            name={name}
            value={form[name] ?? ""}
            focus={name === "topic"}
            onChange={(value) => setForm({ ...form, [name]: value })}
          />
        ))}
        <button type="submit" class="primary">
          {text("messages.follow")}
        </button>
      </form>
      {failure && <Failed message={failure.message} status={failure.status} />}
      {topic && (
        <p role="status">{text("messages.following", { topic, count: messages.length })}</p>
      )}
      {messages.length > 0 && <MessageList messages={messages} namespace={namespace} />}
      {topic && <Command line={line} />}
    </Section>
  );
}
