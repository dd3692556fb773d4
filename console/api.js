// The API as the console asks it: JSON, and server-sent events read from a fetch. EventSource would
// be shorter and cannot send a token.

import { EventReader, parsed, visibleJson } from "./stream.js";

const TOKEN = "cell.token";

export class ApiError extends Error {
  constructor(status, body) {
    super((body && body.message) || `the master answered ${status}`);
    this.status = status;
    this.code = (body && body.code) || "";
    this.hint = (body && body.hint) || "";
    this.body = body || {};
  }
}

/** Called when the master wants to know who asks. */
let onUnknown = () => {};
export function whenUnknown(handler) {
  onUnknown = handler;
}

/** The address that `cell dev` prints ends in its token, behind the `#`, which browsers tell no
    server. It goes from there, so that nobody copies or reads it by chance. Tokens of users are not
    taken from an address: whoever sends a link would choose as whom its reader acts. */
function takeToken() {
  const handed = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!handed?.startsWith("dev.") || location.protocol !== "http:") return false;
  sessionStorage.setItem(TOKEN, handed);
  history.replaceState(history.state, "", location.pathname + location.search);
  return true;
}
takeToken();
// An address that differs behind the `#` alone does not load the page that is open already.
addEventListener("hashchange", () => takeToken() && location.reload());

export function token() {
  return sessionStorage.getItem(TOKEN);
}

/** Kept for this tab alone, and forgotten with it. */
export function setToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

function headers(more) {
  const own = token();
  return own ? { authorization: `Bearer ${own}`, ...more } : { ...more };
}

async function refusal(response) {
  let body = null;
  try {
    body = parsed(await response.text());
  } catch {
    // A proxy on the way, perhaps; the status says enough.
  }
  if (response.status === 401) onUnknown();
  return new ApiError(response.status, body);
}

async function ask(method, path, body, signal) {
  const has = body !== undefined;
  const response = await fetch(path, {
    method,
    signal,
    redirect: "manual",
    headers: headers(has ? { "content-type": "application/json" } : {}),
    body: has ? JSON.stringify(body) : undefined,
  });
  if (response.type === "opaqueredirect") throw await elsewhere();
  if (!response.ok) throw await refusal(response);
  return parsed(await response.text());
}

/** A change is for the leader, and a page may only ask the replica it came from. */
async function elsewhere() {
  const status = await get("/v1/masters");
  const leader = status.members.find((member) => member.leader);
  const hint = leader
    ? `open ${location.protocol}//${leader.address}${location.pathname} and do it there`
    : "try again in a moment";
  return new ApiError(503, { message: "this replica does not lead the cell", hint });
}

export const get = (path, signal) => ask("GET", path, undefined, signal);
export const post = (path, body) => ask("POST", path, body);
export const del = (path) => ask("DELETE", path);

/** Any answer as it came, refusals too: status, what the master says of it, and the text. */
export async function look(path) {
  const response = await fetch(path, { redirect: "manual", headers: headers() });
  if (response.type === "opaqueredirect") throw await elsewhere();
  if (response.status === 401) onUnknown();
  const said = (name) => response.headers.get(name);
  const text = visibleJson(await response.text());
  return { status: response.status, index: said("cell-index"), read: said("cell-read"), text };
}

/** The path of an API object from its names. */
export function at(...names) {
  return `/v1/${names.map((name) => encodeURIComponent(name)).join("/")}`;
}

/** All pages of a list, up to `most` items. */
export async function all(path, most = 5000, signal) {
  const items = [];
  let after = "";
  while (items.length < most) {
    const mark = path.includes("?") ? "&" : "?";
    const more = after ? `&after=${encodeURIComponent(after)}` : "";
    const page = await get(`${path}${mark}limit=1000${more}`, signal);
    items.push(...page.items);
    if (!page.next) return { items, whole: true };
    after = page.next;
  }
  return { items, whole: false };
}

/*
 * A browser opens six connections to a master without TLS, for all tabs together, and a watch holds
 * one. So a page that nobody sees lets go of its watches, and goes on from there when it is seen.
 */
const REST_AFTER = 10_000;
const sleepers = new Set();
let awake = true;
let wake = [];

function rest() {
  awake = false;
  for (const cut of sleepers) cut();
}

function rise() {
  awake = true;
  for (const done of wake.splice(0)) done();
}

const whenAwake = () => (awake ? Promise.resolve() : new Promise((done) => wake.push(done)));

let timer = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) timer = setTimeout(rest, REST_AFTER);
  else rise();
});
addEventListener("pagehide", rest);
addEventListener("pageshow", rise);

/** One connection of a watch, read to its end. */
async function listen(path, last, signal, began) {
  const response = await fetch(path, {
    signal,
    headers: headers(last ? { "last-event-id": last } : {}),
  });
  if (!response.ok) throw await refusal(response);
  const events = began();
  const body = response.body.getReader();
  for (;;) {
    const { done, value } = await body.read();
    if (done) return;
    events.feed(value);
  }
}

/**
 * Follows a watch until the returned function is called; comes back by itself after a break, from
 * where it was. `on(kind, data)` for each event, `tell(state, error)` with "live" or "lost". `reader`
 * makes for each connection what its bytes are fed to.
 */
export function watch(path, on, tell = () => {}, reader = (take) => new EventReader(take)) {
  let connection = null;
  let over = false;
  let last = null;
  let pause = 500;
  const cut = () => connection && connection.abort();
  const take = (kind, data, id) => {
    if (id) last = id;
    if (!over) on(kind, data);
  };
  const began = () => {
    pause = 500;
    tell("live");
    return reader(take);
  };
  const forever = async () => {
    while (!over) {
      await whenAwake();
      connection = new AbortController();
      try {
        await listen(path, last, connection.signal, began);
      } catch (error) {
        if (over) return;
        if (!awake) continue;
        tell("lost", error);
        // What is refused for good is not asked for again.
        if (error instanceof ApiError && error.status >= 400 && error.status < 500) {
          if (error.status === 410) last = null;
          else return;
        }
      }
      if (over) return;
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 8000);
    }
  };
  sleepers.add(cut);
  forever();
  return () => {
    over = true;
    sleepers.delete(cut);
    cut();
  };
}
