// Topics: a list with search, a topic with its queues, where a queue is and why.
import type { JSX } from "preact";
import type { Row } from "../api";
import { age, count } from "../format";
import { go, href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, Command, Facts, Input, namespaced, Pager, Section, Shown, Table } from "../ui";

export interface ListPage {
  rows: Row[];
  total: number;
  first: number;
  size: number;
  is_cut: boolean;
}

const TYPES = ["", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "LITE", "PRIORITY"];

/** Change parameters of the list in the address; another search begins at the first row. */
export function change(route: Route, to: Record<string, string | number>): void {
  const values = { ...route.params, first: 0, ...to };
  go(route.page, { ...values, first: values.first || "" }, true);
}

export function sortBy(route: Route, key: string): void {
  const again = (route.params.sort ?? "name") === key && route.params.descending !== "1";
  change(route, { sort: key, descending: again ? "1" : "" });
}

export function TopicsPage({ route }: { route: Route }): JSX.Element {
  const { params } = route;
  if (params.name) return <TopicPage name={params.name} namespace={params.namespace ?? ""} queue={params.queue} />;
  return <TopicList route={route} />;
}

function TopicList({ route }: { route: Route }): JSX.Element {
  const { params } = route;
  const read = useRead<ListPage>("topics", params, true);
  return (
    <Section title={text("nav.topics")} actions={<ActButton act="topic-create" after={read.again} />}>
      <div class="filters">
        <Input
          name="search"
          value={params.search ?? ""}
          focus
          onChange={(search) => change(route, { search })}
        />
        <label class="input">
          <span>{text("field.type")}</span>
          <select
            value={params.type ?? ""}
            onChange={(event) => change(route, { type: event.currentTarget.value })}
          >
            {TYPES.map((type) => (
              <option key={type} value={type}>
                {type || text("word.all")}
              </option>
            ))}
          </select>
        </label>
        <label class="input flag">
          <input
            type="checkbox"
            checked={params.system === "1"}
            onChange={(event) => change(route, { system: event.currentTarget.checked ? "1" : "" })}
          />
          <span>{text("topics.system")}</span>
        </label>
      </div>
      <Shown read={read}>
        {(data) => (
          <>
            <Table
              name={text("nav.topics")}
              rows={data.rows}
              sort={params.sort ?? "name"}
              descending={params.descending === "1"}
              onSort={(key) => sortBy(route, key)}
              columns={[
                {
                  key: "name",
                  sort: true,
                  show: (row) => (
                    <a href={href("topics", { namespace: String(row.namespace), name: String(row.name) })}>
                      {namespaced(row.namespace, row.name)}
                    </a>
                  ),
                },
                { key: "type", sort: true },
                { key: "queues", sort: true },
                { key: "retention_ms", sort: true },
                { key: "updated_at_ms", sort: true },
              ]}
            />
            <Pager {...data} onMove={(first) => change(route, { first })} />
            {data.is_cut && <p class="failed">{text("word.cut")}</p>}
          </>
        )}
      </Shown>
    </Section>
  );
}

interface Topic extends Row {
  queue_status: Row[];
}

function TopicPage(props: { name: string; namespace: string; queue?: string }): JSX.Element {
  const { name, namespace, queue } = props;
  const read = useRead<Topic>("topic", { name, namespace }, true);
  const values = { name, namespace };
  const topic = { topic: name, namespace };
  return (
    <Section
      title={namespaced(namespace, name)}
      actions={
        <>
          <ActButton act="message-send" values={topic} />
          <ActButton act="topic-update" values={values} after={read.again} />
          <ActButton act="topic-delete" values={values} />
        </>
      }
    >
      <p class="links">
        <a href={href("topics")}>{text("word.back")}</a>
        <a href={href("messages", topic)}>{text("nav.messages")}</a>
        <a href={href("tail", topic)}>{text("nav.tail")}</a>
      </p>
      <Shown read={read}>
        {(data) => (
          <>
            <Facts
              row={{ ...data, messages: stored(data.queue_status) }}
              keys={[
                "type",
                "messages",
                "retention_ms",
                "attributes",
                "topic_id",
                "created_at_ms",
                "updated_at_ms",
                "revision",
              ]}
            />
            <Table
              name={text("topics.queues")}
              rows={data.queue_status}
              columns={[
                {
                  key: "queue",
                  number: true,
                  show: (row) => (
                    <a href={href("topics", { ...values, queue: String(row.queue) })}>
                      {String(row.queue)}
                    </a>
                  ),
                },
                "raft_group",
                "broker_name",
                "min_offset",
                "next_offset",
                {
                  key: "messages",
                  number: true,
                  show: (row) => count(Number(row.next_offset) - Number(row.min_offset)),
                },
                {
                  key: "last_store_time_ms",
                  title: text("topics.last"),
                  show: (row) => age(Number(row.last_store_time_ms)),
                },
              ]}
            />
          </>
        )}
      </Shown>
      {queue !== undefined && <QueuePlace name={name} namespace={namespace} queue={queue} />}
    </Section>
  );
}

function QueuePlace(props: { name: string; namespace: string; queue: string }): JSX.Element {
  const { name, namespace, queue } = props;
  const read = useRead<Row>("queue", { topic: name, namespace, queue });
  return (
    <div class="inner">
      <h3>{text("topics.queue", { queue })}</h3>
      <ActButton act="queue-move" values={{ topic: name, namespace, queue }} after={read.again} />
      <Shown read={read}>
        {(data) => (
          <>
            <ul>
              {(data.reasons as string[]).map((reason) => (
                <li key={reason}>{reason}</li>
              ))}
            </ul>
            <Table
              name={text("topics.epochs")}
              rows={data.epochs as Row[]}
              columns={["epoch", "start_offset", "raft_group"]}
            />
          </>
        )}
      </Shown>
      <Command line="" />
    </div>
  );
}

function stored(queues: Row[]): number {
  return queues.reduce((sum, each) => sum + Number(each.next_offset) - Number(each.min_offset), 0);
}
