// Calls to the console's own server. Types follow what `strata ... -o json` prints.

export type Value = string | number | boolean | null | Value[] | { [key: string]: Value };
export type Row = { [key: string]: Value };
export type Params = Record<string, string | number | boolean | undefined>;

export interface Session {
  signed_in: boolean;
  version: string;
  user: string;
  csrf: string;
  endpoint: string;
}

export interface Field {
  name: string;
  kind: "text" | "long" | "number" | "flag" | "choice" | "texts" | "duration" | "time";
  option: string;
  required: boolean;
  choices: string[];
  default: string;
}

export interface Act {
  name: string;
  namespace: boolean;
  danger: boolean;
  dry_run: boolean;
  fields: Field[];
}

export interface Answer<T> {
  data: T;
  command: string;
}

/** A refusal of the server, or no answer from it. */
export class Failure extends Error {
  constructor(
    message: string,
    readonly code: string,
    readonly status: number,
  ) {
    super(message);
  }
}

let csrf = "";
let onSignedOut = (): void => undefined;

export function whenSignedOut(callback: () => void): void {
  onSignedOut = callback;
}

export function search(params: Params): string {
  const pairs = Object.entries(params)
    .filter(([, value]) => value !== undefined && value !== "" && value !== false)
    .map(([key, value]) => [key, String(value)]);
  const text = new URLSearchParams(pairs).toString();
  return text ? `?${text}` : "";
}

async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const headers: Record<string, string> = {};
  if (method !== "GET") headers["x-strata-csrf"] = csrf;
  if (body !== undefined) headers["content-type"] = "application/json";
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
    });
  } catch {
    throw new Failure("the console does not answer", "unreachable", 0);
  }
  const answer = (await response.json().catch(() => ({}))) as T & { error?: string; code?: string };
  if (!response.ok) {
    if (response.status === 401 && path !== "/api/session") onSignedOut();
    throw new Failure(answer.error ?? response.statusText, answer.code ?? "", response.status);
  }
  return answer;
}

async function session(method: string, body?: unknown): Promise<Session> {
  const found = await call<Session>(method, "/api/session", body);
  csrf = found.csrf ?? "";
  return found;
}

export const api = {
  session: () => session("GET"),
  signIn: (access_key: string, secret_key: string) =>
    session("POST", { access_key, secret_key }),
  signOut: () => session("DELETE"),
  read: <T>(name: string, params: Params) =>
    call<Answer<T>>("GET", `/api/read/${name}${search(params)}`),
  acts: () => call<{ acts: Act[] }>("GET", "/api/acts"),
  preview: (name: string, values: Row, dry_run: boolean) =>
    call<{ command: string }>("POST", `/api/acts/${name}/preview`, { values, dry_run }),
  act: (name: string, values: Row, dry_run: boolean) =>
    call<{ result: Row; command: string }>("POST", `/api/acts/${name}`, { values, dry_run }),
};

/** Listen to a live page or a tail; returns what ends it. */
export function listen<T>(
  path: string,
  onData: (data: T) => void,
  onFailed: (failure: Failure) => void,
  onCommand: (line: string) => void = () => undefined,
): () => void {
  const source = new EventSource(path);
  source.addEventListener("data", (event) => onData(JSON.parse((event as MessageEvent).data)));
  source.addEventListener("failed", (event) => {
    const told = JSON.parse((event as MessageEvent).data);
    onFailed(new Failure(told.error, told.code, told.status));
  });
  source.addEventListener("command", (event) =>
    onCommand(JSON.parse((event as MessageEvent).data).command),
  );
  source.addEventListener("ended", () => {
    source.close();
    onSignedOut();
  });
  source.onerror = () => {
    // A browser tries again by itself, unless the server refused.
    if (source.readyState === EventSource.CLOSED)
      api
        .session()
        .then((found) => !found.signed_in && onSignedOut())
        .catch((failure: Failure) => onFailed(failure));
  };
  return () => source.close();
}
