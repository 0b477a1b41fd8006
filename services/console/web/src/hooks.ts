// What pages share: the route in the address, reads that are live, the session.
import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { api, Failure, listen, search, type Act, type Answer, type Params } from "./api";

const PAUSE_MS = 120;

export interface Route {
  page: string;
  params: Record<string, string>;
}

export function routeNow(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "cluster", params: Object.fromEntries(new URLSearchParams(query)) };
}

export function href(page: string, params: Params = {}): string {
  return `#/${page}${search(params)}`;
}

export function go(page: string, params: Params = {}, replace = false): void {
  if (replace) {
    history.replaceState(null, "", href(page, params));
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = href(page, params);
  }
}

export interface Shared {
  acts: Map<string, Act>;
  live: boolean;
  /** Open the form of an act. */
  open: (name: string, values?: Record<string, string>, after?: () => void) => void;
}

export const SharedContext = createContext<Shared>({
  acts: new Map(),
  live: true,
  open: () => undefined,
});

export const useShared = (): Shared => useContext(SharedContext);

export interface ReadState<T> {
  data?: T;
  command: string;
  failure?: Failure;
  loading: boolean;
  again: () => void;
}

/** Read something; with `live` it is read again whenever it changes. An empty name reads nothing. */
export function useRead<T>(name: string, params: Params = {}, live = false): ReadState<T> {
  const query = search(params);
  const [state, setState] = useState<{ key: string; answer?: Answer<T>; failure?: Failure }>({
    key: "",
  });
  const [round, setRound] = useState(0);
  const shared = useShared();
  const isLive = live && shared.live;
  const key = `${name}${query}`;
  useEffect(() => {
    if (!name) return undefined;
    const taken = (answer: Answer<T>) => setState({ key, answer });
    const failed = (failure: Failure) => setState({ key, failure });
    let current = true;
    let stop = (): void => undefined;
    const start = (): void => {
      if (isLive) stop = listen<Answer<T>>(`/api/live/${name}${query}`, taken, failed);
      else
        api
          .read<T>(name, params)
          .then((answer) => current && taken(answer))
          .catch((failure: Failure) => current && failed(failure));
    };
    // Whoever types into a search asks once, not with each letter.
    const timer = setTimeout(start, state.key ? PAUSE_MS : 0);
    return () => {
      current = false;
      clearTimeout(timer);
      stop();
    };
  }, [key, isLive, round]);
  // While a page of the same list is fetched, its last rows stay.
  return {
    data: state.answer?.data,
    command: state.answer?.command ?? "",
    failure: state.failure,
    loading: state.key !== key && name !== "",
    again: () => setRound(round + 1),
  };
}
