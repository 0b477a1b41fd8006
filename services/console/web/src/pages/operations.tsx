// Delayed messages and recall, transactions, tier, tables, placement, quotas.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Row } from "../api";
import { go, href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, Badge, Facts, Input, namespaced, Section, Shown, Table } from "../ui";

export function DelayedPage(): JSX.Element {
  return (
    <Section
      title={text("nav.delayed")}
      actions={
        <>
          <ActButton act="message-send" />
          <ActButton act="message-recall" />
        </>
      }
    >
      <p>{text("delayed.about")}</p>
    </Section>
  );
}

export function TransactionsPage(): JSX.Element {
  const read = useRead<{ transactions: Row[] }>("transactions", {}, true);
  return (
    <Section title={text("nav.transactions")}>
      <Shown read={read}>
        {(data) => (
          <Table
            name={text("nav.transactions")}
            rows={data.transactions}
            columns={[
              "transaction_id",
              { key: "topic", show: (row) => namespaced(row.namespace, row.topic) },
              "message_id",
              "store_time_ms",
              "check_count",
              "next_check_ms",
              {
                key: "act",
                title: text("word.acts"),
                show: (row) => {
                  const values = { id: String(row.transaction_id) };
                  return (
                    <span class="actions">
                      <ActButton act="transaction-commit" values={values} after={read.again} />
                      <ActButton act="transaction-rollback" values={values} after={read.again} />
                    </span>
                  );
                },
              },
            ]}
          />
        )}
      </Shown>
    </Section>
  );
}

export function TierPage(): JSX.Element {
  const read = useRead<{ raft_groups: Row[]; topics: Row[] }>("tier", {}, true);
  return (
    <Section
      title={text("nav.tier")}
      actions={
        <>
          <ActButton act="tier-flush" />
          <ActButton act="tier-pause" after={read.again} />
          <ActButton act="tier-resume" after={read.again} />
        </>
      }
    >
      <Shown read={read}>
        {(data) => (
          <>
            <Table
              name={text("nav.tier")}
              rows={data.raft_groups}
              columns={[
                "raft_group",
                "state",
                "store",
                "queues",
                "objects",
                "object_bytes",
                "backlog_bytes",
                "oldest_ms",
                "note",
              ]}
            />
            <h3>{text("tier.costs")}</h3>
            <Table
              name={text("tier.costs")}
              rows={data.topics}
              columns={["name", "put_requests", "get_requests", "uploaded_bytes", "downloaded_bytes"]}
            />
          </>
        )}
      </Shown>
    </Section>
  );
}

export function TablesPage({ route }: { route: Route }): JSX.Element {
  const { name, namespace = "" } = route.params;
  const [space, setSpace] = useState(namespace);
  const read = useRead<{ tables: string[] }>(name ? "" : "tables", { namespace });
  if (name) return <TablePage name={name} route={route} />;
  return (
    <Section
      title={text("nav.tables")}
      actions={<ActButton act="table-create" values={{ namespace }} after={read.again} />}
    >
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          go("tables", { namespace: space });
        }}
      >
        <Input name="namespace" value={space} onChange={setSpace} focus />
        <button type="submit">{text("word.find")}</button>
      </form>
      <Shown read={read}>
        {(data) => (
          <Table
            name={text("nav.tables")}
            rows={data.tables.map((table) => ({ name: table }))}
            columns={[
              {
                key: "name",
                show: (row) => (
                  <a href={href("tables", { name: String(row.name), namespace })}>
                    {String(row.name)}
                  </a>
                ),
              },
            ]}
          />
        )}
      </Shown>
    </Section>
  );
}

function TablePage({ name, route }: { name: string; route: Route }): JSX.Element {
  const { namespace = "", prefix = "", after = "" } = route.params;
  const [wanted, setWanted] = useState(prefix);
  const info = useRead<Row>("table", { name, namespace });
  const read = useRead<{ items: Row[]; continuation: string }>("items", {
    name,
    namespace,
    prefix,
    after,
  });
  const values = { table: name, namespace };
  return (
    <Section
      title={namespaced(namespace, name)}
      actions={
        <>
          <ActButton act="item-put" values={values} after={read.again} />
          <ActButton act="table-drop" values={{ name, namespace }} />
        </>
      }
    >
      <p>
        <a href={href("tables", { namespace })}>{text("word.back")}</a>
      </p>
      <Shown read={info}>{(data) => <Facts row={data} />}</Shown>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          go("tables", { name, namespace, prefix: wanted });
        }}
      >
        <Input name="prefix" value={wanted} onChange={setWanted} focus />
        <button type="submit">{text("word.find")}</button>
      </form>
      <Shown read={read}>
        {(data) => (
          <>
            <Table
              name={text("tables.items")}
              rows={data.items}
              columns={[
                "key",
                { key: "value", show: (row) => <span class="clip">{String(row.value)}</span> },
                "version",
                "expires_at_ms",
                {
                  key: "act",
                  title: text("word.acts"),
                  show: (row) => (
                    <ActButton
                      act="item-delete"
                      values={{ ...values, key: String(row.key) }}
                      after={read.again}
                    />
                  ),
                },
              ]}
            />
            {data.continuation && (
              <a href={href("tables", { name, namespace, prefix, after: data.continuation })}>
                {text("word.next")}
              </a>
            )}
          </>
        )}
      </Shown>
    </Section>
  );
}

interface Plan extends Row {
  nodes: Row[];
  plan: (Row & { steps: Row[] }) | null;
}

export function PlacementPage({ route }: { route: Route }): JSX.Element {
  const id = route.params.id ?? "";
  const history = useRead<{ plans: Row[] }>("plans", {}, true);
  const read = useRead<Plan>("plan", { id }, true);
  return (
    <>
      <Section
        title={text("nav.placement")}
        actions={<ActButton act="plan-make" after={history.again} />}
      >
        <Shown read={read}>
          {(data) => (
            <>
              <p>{String(data.rule)}</p>
              <Table
                name={text("placement.loads")}
                rows={data.nodes}
                columns={["node", "bytes_per_s", "expected_bytes_per_s", "busy", "slow", "slow_reason"]}
              />
              {data.plan && <PlanView plan={data.plan} after={history.again} />}
            </>
          )}
        </Shown>
      </Section>
      <Section title={text("placement.history")}>
        <Shown read={history}>
          {(data) => (
            <Table
              name={text("placement.history")}
              rows={data.plans}
              columns={[
                {
                  key: "plan_id",
                  show: (row) => (
                    <a href={href("placement", { id: String(row.plan_id) })}>{String(row.plan_id)}</a>
                  ),
                },
                "state",
                "step_count",
                "max_over_mean_before",
                "max_over_mean_after",
                "made_at_ms",
                "reason",
              ]}
            />
          )}
        </Shown>
      </Section>
    </>
  );
}

function PlanView({ plan, after }: { plan: Row & { steps: Row[] }; after: () => void }): JSX.Element {
  const values = { plan_id: String(plan.plan_id) };
  return (
    <div class="inner">
      <h3>
        {text("placement.plan", { id: String(plan.plan_id) })} <Badge value={String(plan.state)} />
      </h3>
      <div class="actions">
        <ActButton act="plan-apply" values={values} after={after} />
        <ActButton act="plan-stop" values={values} after={after} />
      </div>
      <Facts
        row={plan}
        keys={["planner", "forecast", "cost_bytes", "max_over_mean_before", "max_over_mean_after", "reason"]}
      />
      <Table
        name={text("placement.steps")}
        rows={plan.steps}
        columns={[
          "what",
          "state",
          "reason",
          "cost_bytes",
          "max_over_mean_before",
          "max_over_mean_after",
          "measured_before",
          "measured_after",
          "note",
        ]}
      />
    </div>
  );
}

export function QuotasPage({ route }: { route: Route }): JSX.Element {
  const { namespace = "", topic = "" } = route.params;
  const all = useRead<{ quotas: Row[] }>("quotas", {}, true);
  const read = useRead<{ limits: Row[] }>("quota", { namespace, topic });
  return (
    <>
      <Section title={text("nav.quotas")} actions={<ActButton act="quota-set" after={all.again} />}>
        <Shown read={all}>
          {(data) => (
            <Table
              name={text("nav.quotas")}
              rows={data.quotas}
              columns={[
                {
                  key: "namespace",
                  show: (row) => (
                    <a
                      href={href("quotas", {
                        namespace: String(row.namespace),
                        topic: String(row.topic),
                      })}
                    >
                      {String(row.namespace) || text("quotas.default")}
                    </a>
                  ),
                },
                "topic",
                "messages_per_s",
                "bytes_per_s",
                "topics",
                "consumer_groups",
                "connections",
              ]}
            />
          )}
        </Shown>
      </Section>
      <Section
        title={text("quotas.of", { name: namespaced(namespace, topic) || text("quotas.default") })}
      >
        <Shown read={read}>
          {(data) => (
            <Table
              name={text("quotas.limits")}
              rows={data.limits}
              columns={["name", "limit", "used", "broker_part", "is_default"]}
            />
          )}
        </Shown>
      </Section>
    </>
  );
}
