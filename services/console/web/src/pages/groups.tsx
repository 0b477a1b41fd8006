// Consumer groups: lag per queue and its age, members, what is in flight, retries, dead letters.
import type { JSX } from "preact";
import type { Row } from "../api";
import { age } from "../format";
import { href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, Facts, Input, namespaced, Pager, Section, Shown, Table } from "../ui";
import { change, sortBy, type ListPage } from "./topics";

export function GroupsPage({ route }: { route: Route }): JSX.Element {
  const { params } = route;
  if (params.name) return <GroupPage name={params.name} namespace={params.namespace ?? ""} />;
  return <GroupList route={route} />;
}

function GroupList({ route }: { route: Route }): JSX.Element {
  const { params } = route;
  const read = useRead<ListPage>("groups", { size: 25, ...params }, true);
  return (
    <Section title={text("nav.groups")} actions={<ActButton act="group-create" after={read.again} />}>
      <div class="filters">
        <Input
          name="search"
          value={params.search ?? ""}
          focus
          onChange={(search) => change(route, { search })}
        />
      </div>
      <Shown read={read}>
        {(data) => (
          <>
            <Table
              name={text("nav.groups")}
              rows={data.rows}
              sort={params.sort ?? "name"}
              descending={params.descending === "1"}
              onSort={(key) => sortBy(route, key)}
              columns={[
                {
                  key: "name",
                  sort: true,
                  show: (row) => (
                    <a
                      href={href("groups", {
                        namespace: String(row.namespace),
                        name: String(row.name),
                      })}
                    >
                      {namespaced(row.namespace, row.name)}
                    </a>
                  ),
                },
                "lag",
                "in_flight",
                "members",
                { key: "fifo", sort: true },
                "broadcast",
                { key: "max_attempts", sort: true },
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

interface Group extends Row {
  queues: Row[];
  members: Row[];
  oldest_time_ms: number | null;
}

function GroupPage({ name, namespace }: { name: string; namespace: string }): JSX.Element {
  const read = useRead<Group>("group", { name, namespace }, true);
  const values = { name, namespace };
  return (
    <Section
      title={namespaced(namespace, name)}
      actions={
        <>
          <ActButton act="group-update" values={values} after={read.again} />
          <ActButton act="group-reset" values={values} />
          <ActButton act="group-delete" values={values} />
        </>
      }
    >
      <p class="links">
        <a href={href("groups")}>{text("word.back")}</a>
        <a href={href("dead-letters", { group: name, namespace })}>{text("nav.dead-letters")}</a>
      </p>
      <Shown read={read}>
        {(data) => (
          <>
            <Facts
              row={{ ...data, lag_age: age(data.oldest_time_ms) }}
              keys={[
                "lag",
                "lag_age",
                "in_flight",
                "dead_letters",
                "max_attempts",
                "backoff",
                "fifo",
                "broadcast",
                "created_at_ms",
              ]}
            />
            <h3>{text("groups.queues")}</h3>
            <Table
              name={text("groups.queues")}
              rows={data.queues}
              columns={[
                {
                  key: "topic",
                  show: (row) => (
                    <a href={href("topics", { name: String(row.topic), namespace })}>
                      {String(row.topic)}
                    </a>
                  ),
                },
                "queue",
                "lag",
                { key: "lag_age", show: (row) => age(row.oldest_time_ms as number | null) },
                "in_flight",
                "cursor",
                "min_offset",
                "next_offset",
              ]}
            />
            <h3>{text("groups.members")}</h3>
            <Table
              name={text("groups.members")}
              rows={data.members}
              columns={[
                "client_id",
                "client_type",
                "language",
                "version",
                "subscriptions",
                {
                  key: "last_heartbeat_ms",
                  show: (row) => age(Number(row.last_heartbeat_ms)),
                },
              ]}
            />
          </>
        )}
      </Shown>
    </Section>
  );
}
