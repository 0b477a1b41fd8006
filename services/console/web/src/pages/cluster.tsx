// Cluster map: racks, nodes, raft groups, leaders, slow nodes, and what is wrong.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Row } from "../api";
import { duration, readable, size } from "../format";
import { href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, Badge, Facts, Section, Shown, Table } from "../ui";

interface Health extends Row {
  status: string;
  reasons: Row[];
}

interface Overview {
  version: string;
  health: Health;
  nodes: Row[];
  raft_groups: Row[];
  metadata_stale: boolean;
}

const ROLES = ["storage", "broker", "nameserver"];

export function ClusterPage({ route }: { route: Route }): JSX.Element {
  const read = useRead<Overview>("overview", {}, true);
  if (route.params.node) return <NodePage name={route.params.node} />;
  return (
    <Shown read={read}>
      {(data) => (
        <>
          <Findings health={data.health} />
          {data.metadata_stale && (
            <p class="failed">
              {text("cluster.stale", { age: duration(Number(data.health.metadata_age_ms)) })}
            </p>
          )}
          <Section title={text("cluster.map")}>
            <Racks nodes={data.nodes} />
          </Section>
          <Groups groups={data.raft_groups} />
        </>
      )}
    </Shown>
  );
}

function Findings({ health }: { health: Health }): JSX.Element {
  return (
    <Section title={text("cluster.health")} actions={<Badge value={health.status} />}>
      {health.reasons.length ? (
        <Table
          name={text("cluster.health")}
          rows={health.reasons}
          columns={["severity", "kind", "name", "state", "detail"]}
        />
      ) : (
        <p class="empty">{text("cluster.well")}</p>
      )}
    </Section>
  );
}

function Racks({ nodes }: { nodes: Row[] }): JSX.Element {
  const racks = [...new Set(nodes.map((node) => String(node.rack)))].sort();
  return (
    <div class="racks">
      {racks.map((rack) => (
        <div class="rack" key={rack}>
          <h3>{rack ? text("cluster.rack", { rack }) : text("cluster.no_rack")}</h3>
          {ROLES.map((role) =>
            nodes
              .filter((node) => String(node.rack) === rack && node.role === role)
              .map((node) => <NodeCard key={String(node.node)} node={node} />),
          )}
        </div>
      ))}
    </div>
  );
}

function NodeCard({ node }: { node: Row }): JSX.Element {
  const why = [node.slow_reason, node.reason].filter(Boolean).join("; ");
  const total = Number(node.disk_total_bytes);
  return (
    <a class="card" data-row href={href("cluster", { node: String(node.node) })}>
      <span class="name">{String(node.node)}</span>
      <span class="facts-line">
        {text(`role.${node.role}`)} <Badge value={String(node.state)} />
        {node.draining && <Badge value={text("cluster.draining")} />}
        {node.slow && <Badge value={text("cluster.slow")} />}
      </span>
      {node.role === "storage" && (
        <span class="facts-line">
          {text("cluster.leads", { count: String(node.leads) })}, {size(Number(node.bytes_per_s))}/s
          {total > 0 && `, ${text("cluster.free", { size: size(Number(node.disk_free_bytes)) })}`}
        </span>
      )}
      {why && <span class="why">{why}</span>}
    </a>
  );
}

function Groups({ groups }: { groups: Row[] }): JSX.Element {
  const [chosen, setChosen] = useState(0);
  return (
    <Section title={text("cluster.raft_groups")}>
      <Table
        name={text("cluster.raft_groups")}
        rows={groups}
        columns={[
          {
            key: "raft_group",
            show: (row) => (
              <button
                type="button"
                class="link"
                aria-expanded={chosen === row.raft_group}
                onClick={() => setChosen(chosen === row.raft_group ? 0 : Number(row.raft_group))}
              >
                {String(row.raft_group)}
              </button>
            ),
          },
          "state",
          {
            key: "leader",
            show: (row) =>
              row.leader ? (
                <a href={href("cluster", { node: String(row.leader) })}>{String(row.leader)}</a>
              ) : (
                "-"
              ),
          },
          {
            key: "replicas",
            show: (row) =>
              text("word.of", {
                part: String(row.replicas_live),
                whole: String(row.replicas_wanted),
              }),
          },
          "term",
          "commit_index",
          "applied_index",
          "reason",
        ]}
      />
      {chosen > 0 && <Replicas number={chosen} />}
    </Section>
  );
}

function Replicas({ number }: { number: number }): JSX.Element {
  const read = useRead<Row>("raft-group", { number });
  const values = { raft_group: String(number) };
  return (
    <div class="inner">
      <h3>{text("cluster.replicas", { number })}</h3>
      <div class="actions">
        <ActButton act="leader-transfer" values={values} after={read.again} />
        <ActButton act="replica-add" values={values} after={read.again} />
        <ActButton act="replica-remove" values={values} after={read.again} />
      </div>
      <Shown read={read}>
        {(data) => (
          <Table
            name={text("cluster.replicas", { number })}
            rows={data.replicas as Row[]}
            columns={[
              "node",
              "role",
              "leader",
              "state",
              "last_index",
              "applied_index",
              "match_index",
              "reason",
            ]}
          />
        )}
      </Shown>
    </div>
  );
}

function NodePage({ name }: { name: string }): JSX.Element {
  const read = useRead<Row>("node", { name }, true);
  const values = { name };
  return (
    <Section
      title={name}
      actions={
        <>
          <ActButton act="node-drain" values={values} />
          <ActButton act="node-undrain" values={values} />
          <ActButton act="node-remove" values={values} />
        </>
      }
    >
      <p>
        <a href={href("cluster")}>{text("word.back")}</a>
      </p>
      <Shown read={read}>
        {(data) => (
          <>
            <Facts row={data} keys={Object.keys(data).filter((key) => key !== "replicas")} />
            {(data.replicas as Row[]).length > 0 && (
              <Table
                name={text("cluster.replicas", { number: readable("node", name) })}
                rows={data.replicas as Row[]}
                columns={["raft_group", "role", "leader", "state", "last_index", "reason"]}
              />
            )}
          </>
        )}
      </Shown>
    </Section>
  );
}
