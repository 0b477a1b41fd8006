// The shell: sign-in, navigation, keyboard, language, theme; pages by the address.
import "./app.css";
import { render, type JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { api, Failure, whenSignedOut, type Act, type Session } from "./api";
import { ActDialog } from "./forms";
import { go, href, routeNow, SharedContext, type Route } from "./hooks";
import { AuditPage, ConfigPage, UsersPage } from "./pages/access";
import { ClusterPage } from "./pages/cluster";
import { DeadLettersPage } from "./pages/deadletters";
import { GroupsPage } from "./pages/groups";
import { MessagesPage, TailPage } from "./pages/messages";
import {
  DelayedPage,
  PlacementPage,
  QuotasPage,
  TablesPage,
  TierPage,
  TransactionsPage,
} from "./pages/operations";
import { TopicsPage } from "./pages/topics";
import { language, setLanguage, text } from "./texts";
import { Failed } from "./ui";

type Page = (props: { route: Route }) => JSX.Element;

/** Pages in the order of the navigation, each with its key after "g". */
const PAGES: [string, string, Page][] = [
  ["cluster", "c", ClusterPage],
  ["topics", "t", TopicsPage],
  ["groups", "g", GroupsPage],
  ["messages", "m", MessagesPage],
  ["tail", "l", TailPage],
  ["dead-letters", "d", DeadLettersPage],
  ["delayed", "y", DelayedPage],
  ["transactions", "x", TransactionsPage],
  ["tier", "i", TierPage],
  ["tables", "k", TablesPage],
  ["placement", "p", PlacementPage],
  ["quotas", "q", QuotasPage],
  ["users", "u", UsersPage],
  ["audit", "a", AuditPage],
  ["config", "o", ConfigPage],
];

function App(): JSX.Element {
  const [session, setSession] = useState<Session>();
  const [failure, setFailure] = useState<Failure>();
  const [, setRound] = useState(0);
  const look = (): void => {
    api.session().then(setSession).catch(setFailure);
  };
  useEffect(() => {
    whenSignedOut(look);
    look();
  }, []);
  const repaint = (): void => setRound((round) => round + 1);
  if (failure && !session)
    return (
      <main class="alone">
        <h1>StrataMQ</h1>
        <Failed message={failure.message} status={failure.status} />
        <button
          type="button"
          class="primary"
          onClick={() => {
            setFailure(undefined);
            look();
          }}
        >
          {text("word.again")}
        </button>
      </main>
    );
  if (!session)
    return (
      <main class="alone">
        <h1>StrataMQ</h1>
        <p>{text("word.loading")}</p>
      </main>
    );
  if (!session.signed_in) return <SignIn onSignedIn={setSession} repaint={repaint} />;
  return <Shell session={session} onSignOut={() => api.signOut().then(look)} repaint={repaint} />;
}

interface SignInProps {
  onSignedIn: (session: Session) => void;
  repaint: () => void;
}

function SignIn({ onSignedIn, repaint }: SignInProps): JSX.Element {
  const [user, setUser] = useState("");
  const [secret, setSecret] = useState("");
  const [failure, setFailure] = useState<Failure>();
  return (
    <main class="alone">
      <h1>StrataMQ</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setFailure(undefined);
          api.signIn(user, secret).then(onSignedIn).catch(setFailure);
        }}
      >
        <div class="field">
          <label for="access">{text("sign_in.access_key")}</label>
          <input
            id="access"
            autocomplete="username"
            value={user}
            required
            onInput={(event) => setUser(event.currentTarget.value)}
          />
        </div>
        <div class="field">
          <label for="secret">{text("sign_in.secret_key")}</label>
          <input
            id="secret"
            type="password"
            autocomplete="current-password"
            value={secret}
            required
            onInput={(event) => setSecret(event.currentTarget.value)}
          />
        </div>
        {failure && <Failed message={failure.message} status={failure.status} />}
        <div class="buttons">
          <button type="submit" class="primary">
            {text("sign_in.do")}
          </button>
          <LanguageButton repaint={repaint} />
        </div>
      </form>
    </main>
  );
}

interface Opened {
  name: string;
  values: Record<string, string>;
  after?: () => void;
}

interface ShellProps {
  session: Session;
  onSignOut: () => void;
  repaint: () => void;
}

function Shell({ session, onSignOut, repaint }: ShellProps): JSX.Element {
  const [route, setRoute] = useState(routeNow());
  const [acts, setActs] = useState(new Map<string, Act>());
  const [live, setLive] = useState(true);
  const [opened, setOpened] = useState<Opened>();
  const [helps, setHelps] = useState(false);
  useEffect(() => {
    const changed = (): void => setRoute(routeNow());
    window.addEventListener("hashchange", changed);
    api.acts().then((found) => setActs(new Map(found.acts.map((act) => [act.name, act]))));
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  useKeys(() => setHelps((before) => !before));
  const [name, , Page] = PAGES.find(([each]) => each === route.page) ?? PAGES[0]!;
  useEffect(() => {
    document.title = `${text(`nav.${name}`)} - StrataMQ`;
  }, [name, language()]);
  const act = opened && acts.get(opened.name);
  const open = (actName: string, values: Record<string, string> = {}, after?: () => void): void =>
    setOpened({ name: actName, values, after });
  return (
    <SharedContext.Provider value={{ acts, live, open }}>
      <a class="skip" href="#main" onClick={(event) => skip(event)}>
        {text("word.skip")}
      </a>
      <header>
        <strong class="brand">StrataMQ</strong>
        <span class="endpoint">{session.endpoint}</span>
        <span class="grow" />
        <button type="button" class="small" aria-pressed={live} onClick={() => setLive(!live)}>
          {text("word.live")}
        </button>
        <LanguageButton repaint={repaint} />
        <ThemeButton repaint={repaint} />
        <button type="button" class="small" onClick={() => setHelps(true)}>
          {text("word.keys")}
        </button>
        {session.user && (
          <>
            <span>{session.user}</span>
            <button type="button" class="small" onClick={onSignOut}>
              {text("sign_in.out")}
            </button>
          </>
        )}
      </header>
      <div class="columns">
        <nav aria-label={text("word.pages")}>
          <ul>
            {PAGES.map(([each]) => (
              <li key={each}>
                <a href={href(each)} aria-current={each === name ? "page" : undefined}>
                  {text(`nav.${each}`)}
                </a>
              </li>
            ))}
          </ul>
        </nav>
        <main id="main" tabIndex={-1}>
          <h1>{text(`nav.${name}`)}</h1>
          <Page key={name} route={route} />
        </main>
      </div>
      {act && opened && (
        <ActDialog
          key={opened.name}
          act={act}
          values={opened.values}
          onClose={(isDone) => {
            setOpened(undefined);
            if (isDone) opened.after?.();
          }}
        />
      )}
      {helps && <Help onClose={() => setHelps(false)} />}
    </SharedContext.Provider>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** "g" and a page's key, "/" for the search, "j" and "k" along rows, "?" for help. */
function useKeys(onHelp: () => void): void {
  useEffect(() => {
    let goes = false;
    const pressed = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      const types = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
      if (types || event.ctrlKey || event.metaKey || event.altKey) return;
      if (document.querySelector("dialog[open]")) return;
      const page = goes && PAGES.find(([, key]) => key === event.key);
      goes = event.key === "g" && !goes;
      if (page) go(page[0]);
      else if (event.key === "?") onHelp();
      else if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLInputElement>("[data-search]")?.focus();
      } else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, []);
}

function step(by: number): void {
  const rows = [...document.querySelectorAll<HTMLElement>("main [data-row]")]
    .map((row) => (row.matches("a") ? row : row.querySelector<HTMLElement>("a, button")))
    .filter((each): each is HTMLElement => each !== null);
  const now = rows.indexOf(document.activeElement as HTMLElement);
  rows[Math.min(rows.length - 1, Math.max(0, now + by))]?.focus();
}

function LanguageButton({ repaint }: { repaint: () => void }): JSX.Element {
  const other = language() === "en" ? "zh" : "en";
  return (
    <button
      type="button"
      class="small"
      lang={other === "zh" ? "zh-CN" : "en"}
      onClick={() => {
        setLanguage(other);
        repaint();
      }}
    >
      {other === "zh" ? "中文" : "English"}
    </button>
  );
}

function ThemeButton({ repaint }: { repaint: () => void }): JSX.Element {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  return (
    <button
      type="button"
      class="small"
      aria-pressed={isDark}
      onClick={() => {
        root.dataset.theme = isDark ? "light" : "dark";
        localStorage.setItem("theme", root.dataset.theme);
        repaint();
      }}
    >
      {text("word.dark")}
    </button>
  );
}

function Help({ onClose }: { onClose: () => void }): JSX.Element {
  const keys: [string, string][] = [
    ...PAGES.map(([name, key]): [string, string] => [`g ${key}`, text(`nav.${name}`)]),
    ["/", text("keys.search")],
    ["j k", text("keys.rows")],
    ["Enter", text("keys.enter")],
    ["Esc", text("keys.escape")],
    ["?", text("keys.help")],
  ];
  return (
    <dialog
      ref={(element) => {
        if (element && !element.open) element.showModal();
      }}
      aria-label={text("word.keys")}
      onClose={onClose}
    >
      <h2>{text("word.keys")}</h2>
      <dl class="keys">
        {keys.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button>{text("word.close")}</button>
      </form>
    </dialog>
  );
}

const theme = localStorage.getItem("theme");
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
setLanguage(language());
render(<App />, document.getElementById("app")!);
