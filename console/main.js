// The frame around all pages: which page an address means, the navigation, the theme, the keys.

import { html, render, useEffect, useErrorBoundary, useState } from "./vendor/htm-preact.js";
import { get, token, whenUnknown } from "./api.js";
import { askToken, open } from "./dialog.js";
import { DOCS, Keys, VIEWS, listen } from "./keys.js";
import { restart, useRead } from "./live.js";
import { BASE, Link, Page, Problem, onMove, to } from "./parts.js";
import { count } from "./units.js";

const THEME = "cell.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function themeNow() {
  return localStorage.getItem(THEME) || (system.matches ? "dark" : "light");
}

function applyTheme() {
  document.documentElement.dataset.theme = themeNow();
}

export function turnTheme() {
  const next = themeNow() === "dark" ? "light" : "dark";
  // What the system says anyway is not written down: a change there is then followed.
  if (next === (system.matches ? "dark" : "light")) localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, next);
  applyTheme();
}

/** Pages by the first part of the path and how many follow. Each is loaded when it is opened. */
const PAGES = {
  "": [[0, () => import("./pages/overview.js")]],
  jobs: [
    [0, () => import("./pages/jobs.js")],
    [2, () => import("./pages/job.js")],
    [3, () => import("./pages/task.js")],
  ],
  machines: [
    [0, () => import("./pages/machines.js")],
    [1, () => import("./pages/machine.js")],
  ],
  pending: [[0, () => import("./pages/pending.js")]],
  quota: [[0, () => import("./pages/quota.js")]],
  sql: [[0, () => import("./pages/sql.js")]],
  docs: [[0, () => import("./pages/docs.js")]],
};

/** A name in an address; one that is no text is looked for as it is written, and not found. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The page of an address and the names in it. */
function route(path) {
  const parts = path.slice(BASE.length).split("/").filter(Boolean).map(decoded);
  const [first = "", ...names] = parts;
  const found = (PAGES[first] || []).find(([n]) => n === names.length);
  return { first, names, load: found && found[1], key: parts.join("/") };
}

function useRoute() {
  const [here, set] = useState(() => route(location.pathname));
  useEffect(() => {
    const moved = () => set(route(location.pathname));
    addEventListener("popstate", moved);
    const stop = onMove(() => {
      moved();
      scrollTo(0, 0);
      // A new page is read from its top, by eyes and by screen readers.
      requestAnimationFrame(() => {
        const heading = document.querySelector("main h1");
        if (heading) heading.focus({ preventScroll: true });
      });
    });
    return () => {
      removeEventListener("popstate", moved);
      stop();
    };
  }, []);
  return here;
}

function Nav({ first, onTheme }) {
  // A look now and then will do: connections for watches are few.
  const { value } = useRead((signal) => get("/v1/cluster_status?summary=true", signal), [first], 5000);
  const pending = value ? value.tasks.pending : 0;
  return html`<nav class="side" aria-label="Pages">
    <${Link} to=${to("")} class="brand" aria-label="Cellwright, overview">
      <img src="/console/icon.svg" alt="" width="26" height="26" /><span>Cellwright</span>
    <//>
    <ul>
      ${VIEWS.map(([key, title, href]) => {
        const here = href === to(first);
        return html`<li><${Link} to=${href} aria-current=${here ? "page" : null}>${title}
          ${title === "Pending" && pending > 0 && html`<em>${count(pending)}</em>`}
          <kbd aria-hidden="true">g ${key}</kbd><//></li>`;
      })}
    </ul>
    <div class="foot">
      <${Link} to=${DOCS} aria-current=${first === "docs" ? "page" : null}>API<//>
      <button onClick=${onTheme}><span aria-hidden="true">◐</span> Theme</button>
      <button onClick=${() => open(Keys)}><span aria-hidden="true">?</span> Keys</button>
      ${token() && html`<button onClick=${() => askToken(restart)}>Token</button>`}
    </div>
  </nav>`;
}

function Loaded({ here }) {
  const [page, set] = useState({ key: null, View: null });
  const [error, reset] = useErrorBoundary((problem) => console.error(problem));
  const [broken, fail] = useState(null);
  useEffect(() => {
    fail(null);
    if (!here.load) return;
    if (error) reset();
    here.load().then(
      (module) => set({ key: here.key, View: module.default, names: here.names }),
      fail,
    );
  }, [here.key]);
  if (error || broken) {
    return html`<${Page} title="Something went wrong"><${Problem} error=${error || broken} /><//>`;
  }
  if (!here.load) {
    return html`<${Page} title="No such page">
      <p class="empty">Nothing is at ${location.pathname}. <${Link} to=${to("")}>Overview<//></p><//>`;
  }
  const { View, names, key } = page;
  return View && key === here.key ? html`<${View} key=${key} names=${names} />` : null;
}

function App() {
  const here = useRoute();
  useEffect(() => listen(turnTheme), []);
  useEffect(() => {
    whenUnknown(() => askToken(() => location.reload()));
  }, []);
  return html`<div class="frame">
    <${Nav} first=${here.first} onTheme=${turnTheme} />
    <main id="main" tabindex="-1"><${Loaded} here=${here} /></main>
  </div>`;
}

applyTheme();
system.addEventListener("change", applyTheme);
const place = document.getElementById("app");
place.textContent = "";
render(html`<${App} />`, place);
