// Users, policies, the audit trail, configuration with defaults.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Row } from "../api";
import { readable } from "../format";
import { href, useRead, type Route } from "../hooks";
import { text } from "../texts";
import { ActButton, Input, Section, Shown, Table } from "../ui";

export function UsersPage({ route }: { route: Route }): JSX.Element {
  const users = useRead<{ users: Row[] }>("users", {}, true);
  const user = route.params.user ?? "";
  const policies = useRead<{ policies: Row[] }>("policies", { user }, true);
  return (
    <>
      <Section title={text("nav.users")} actions={<ActButton act="user-create" after={users.again} />}>
        <Shown read={users}>
          {(data) => (
            <Table
              name={text("nav.users")}
              rows={data.users}
              columns={[
                {
                  key: "name",
                  show: (row) => (
                    <a href={href("users", { user: String(row.name) })}>{String(row.name)}</a>
                  ),
                },
                "admin",
                "disabled",
                "created_at_ms",
                "previous_valid_until_ms",
                {
                  key: "act",
                  title: text("word.acts"),
                  show: (row) => <UserActs row={row} after={users.again} />,
                },
              ]}
            />
          )}
        </Shown>
      </Section>
      <Section
        title={user ? text("users.policies_of", { user }) : text("users.policies")}
        actions={
          <>
            <ActButton act="policy-test" values={{ user }} />
            <ActButton act="policy-create" values={{ user }} after={policies.again} />
          </>
        }
      >
        <Shown read={policies}>
          {(data) => (
            <Table
              name={text("users.policies")}
              rows={data.policies}
              columns={[
                "policy_id",
                "user",
                "resource",
                "actions",
                "decision",
                "sources",
                {
                  key: "act",
                  title: text("word.acts"),
                  show: (row) => (
                    <ActButton
                      act="policy-delete"
                      values={{ policy_id: String(row.policy_id) }}
                      after={policies.again}
                    />
                  ),
                },
              ]}
            />
          )}
        </Shown>
      </Section>
    </>
  );
}

function UserActs({ row, after }: { row: Row; after: () => void }): JSX.Element {
  const values = { name: String(row.name) };
  return (
    <span class="actions">
      <ActButton act={row.disabled ? "user-enable" : "user-disable"} values={values} after={after} />
      <ActButton act="user-rotate-key" values={values} after={after} />
      <ActButton act="user-delete" values={values} after={after} />
    </span>
  );
}

export function AuditPage(): JSX.Element {
  const read = useRead<{ events: Row[]; has_topic: boolean }>("audit", { size: 100 }, true);
  return (
    <Section title={text("nav.audit")}>
      <Shown read={read}>
        {(data) =>
          data.has_topic ? (
            <Table
              name={text("nav.audit")}
              rows={data.events}
              columns={["time_ms", "event", "outcome", "user", "peer", "rpc", "request", "reason"]}
            />
          ) : (
            <p class="empty">{text("audit.none")}</p>
          )
        }
      </Shown>
    </Section>
  );
}

export function ConfigPage(): JSX.Element {
  const read = useRead<{ keys: Row[] }>("config");
  const [search, setSearch] = useState("");
  const [changed, setChanged] = useState(false);
  const matches = (row: Row): boolean =>
    (!changed || !row.is_default) && `${row.section}.${row.key}`.includes(search.toLowerCase());
  return (
    <Section title={text("nav.config")}>
      <div class="filters">
        <Input name="search" value={search} onChange={setSearch} focus />
        <label class="input flag">
          <input
            type="checkbox"
            checked={changed}
            onChange={(event) => setChanged(event.currentTarget.checked)}
          />
          <span>{text("config.changed")}</span>
        </label>
      </div>
      <Shown read={read}>
        {(data) => (
          <Table
            name={text("nav.config")}
            rows={data.keys.filter(matches)}
            columns={[
              {
                key: "key",
                show: (row) => (row.section ? `${row.section}.${row.key}` : String(row.key)),
              },
              {
                key: "value",
                show: (row) => {
                  const value = readable("value", row.value);
                  return row.is_default ? value : <strong>{value}</strong>;
                },
              },
              { key: "default", show: (row) => readable("default", row.default) },
              "description",
            ]}
          />
        )}
      </Shown>
    </Section>
  );
}
