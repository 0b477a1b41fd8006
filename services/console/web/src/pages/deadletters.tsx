// Dead letters: consumer groups that have some, their messages, redrive with a dry run.
import type { JSX } from "preact";
import type { Row } from "../api";
import { age } from "../format";
import { href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, namespaced, Section, Shown, Table } from "../ui";
import { MessageList } from "./messages";

export function DeadLettersPage({ route }: { route: Route }): JSX.Element {
  const { group, namespace = "", page = "" } = route.params;
  return group ? <Letters group={group} namespace={namespace} page={page} /> : <GroupList />;
}

function GroupList(): JSX.Element {
  const read = useRead<{ topics: Row[] }>("dead-letter-groups", {}, true);
  return (
    <Section title={text("nav.dead-letters")}>
      <Shown read={read}>
        {(data) => (
          <Table
            name={text("nav.dead-letters")}
            rows={data.topics}
            columns={[
              {
                key: "consumer_group",
                show: (row) => (
                  <a
                    href={href("dead-letters", {
                      group: String(row.consumer_group),
                      namespace: String(row.namespace),
                    })}
                  >
                    {namespaced(row.namespace, row.consumer_group)}
                  </a>
                ),
              },
              "waiting",
              "messages",
              {
                key: "last_store_time_ms",
                title: text("topics.last"),
                show: (row) => age(Number(row.last_store_time_ms)),
              },
            ]}
          />
        )}
      </Shown>
    </Section>
  );
}

interface Found {
  dead_letters: Row[];
  next_page: string;
}

function Letters(props: { group: string; namespace: string; page: string }): JSX.Element {
  const { group, namespace, page } = props;
  const read = useRead<Found>("dead-letters", { group, namespace, page });
  return (
    <Section
      title={text("dead_letters.of", { group: namespaced(namespace, group) })}
      actions={<ActButton act="dlq-redrive" values={{ group, namespace }} after={read.again} />}
    >
      <p>
        <a href={href("dead-letters")}>{text("word.back")}</a>
      </p>
      <Shown read={read}>
        {(data) => (
          <>
            <MessageList messages={data.dead_letters} namespace={namespace} />
            {data.next_page && (
              <a href={href("dead-letters", { group, namespace, page: data.next_page })}>
                {text("word.next")}
              </a>
            )}
          </>
        )}
      </Shown>
    </Section>
  );
}
