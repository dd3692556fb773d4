// Small pieces that every page is made of.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { TASK_WORDS, ago, amount, bare, moment, tally, total } from "./units.js";

export const BASE = "/console";

/** Address of a view from its parts. */
export function to(...names) {
  return `${BASE}/${names.map((name) => encodeURIComponent(name)).join("/")}`;
}

const movers = new Set();
export function onMove(handler) {
  movers.add(handler);
  return () => movers.delete(handler);
}

/** Goes to a view without loading the page anew. */
export function go(href, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", href);
  else history.pushState(null, "", href);
  for (const handler of movers) handler({ replace });
}

export function Link({ to: href, children, ...rest }) {
  const follow = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    go(href);
  };
  return html`<a href=${href} onClick=${follow} ...${rest}>${children}</a>`;
}

export function Badge({ tone = "calm", children }) {
  return html`<span class="badge ${tone}"><i aria-hidden="true"></i>${children}</span>`;
}

export function Page({ title, crumbs = [], actions, children, live }) {
  useEffect(() => {
    document.title = `${title} · Cellwright`;
  }, [title]);
  return html`
    <header class="head">
      <div class="title">
        ${crumbs.length > 0 &&
        html`<nav class="crumbs" aria-label="Where">
          ${crumbs.map(([text, href]) => html`<${Link} to=${href}>${text}<//><b aria-hidden="true">/</b>`)}
        </nav>`}
        <h1 tabindex="-1">${title}</h1>
      </div>
      ${live && html`<${Live} store=${live} />`}
      ${actions && html`<div class="actions">${actions}</div>`}
    </header>
    ${children}
  `;
}

function Live({ store }) {
  const text = { live: "live", lost: "reconnecting", wait: "connecting" }[store.state];
  return html`<span class="live ${store.state}" role="status"><i aria-hidden="true"></i>${text}</span>`;
}

export function Card({ title, aside, children, kind = "" }) {
  return html`<section class="card ${kind}">
    ${title && html`<h2>${title}${aside && html`<small>${aside}</small>`}</h2>`}
    ${children}
  </section>`;
}

export function Problem({ error }) {
  if (!error) return null;
  return html`<div class="problem" role="alert">
    <strong>${error.message}</strong>
    ${error.hint && html`<span>${error.hint}</span>`}
  </div>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Wait() {
  return html`<p class="empty" aria-busy="true">Loading…</p>`;
}

/** A moment as it is spoken of, the exact one on hover. */
export function When({ at }) {
  return html`<time title=${moment(at)}>${ago(at)}</time>`;
}

/** How many tasks are in which state, as one bar. */
export function Tally({ tasks, label = true }) {
  const all = total(tasks) || 1;
  const width = (n) => ({ width: `${(100 * n) / all}%` });
  return html`<span class="tally">
    <span class="stack" aria-hidden="true">
      ${TASK_WORDS.filter(([word]) => tasks[word] > 0).map(
        ([word, tone]) => html`<i class=${tone} style=${width(tasks[word])}></i>`,
      )}
    </span>
    ${label && html`<span>${tally(tasks)}</span>`}
  </span>`;
}

/** Usage, reservation and limit of one dimension against what there is. */
export function Meter({ dimension, title, used, reserved, limit, capacity }) {
  const most = Math.max(capacity || 0, limit || 0, reserved || 0, used || 0) || 1;
  const share = (n) => ({ width: `${Math.min(100, (100 * (n || 0)) / most)}%` });
  const isPart = capacity && capacity !== limit;
  const text = [
    used !== null && used !== undefined ? `${bare(dimension, used)} used` : "usage unknown",
    `${bare(dimension, reserved)} reserved`,
    `${(isPart ? bare : amount)(dimension, limit)} limit`,
    isPart ? `of ${amount(dimension, capacity)}` : "",
  ];
  return html`<div class="meter">
    <span class="name">${title}</span>
    <span class="track" aria-hidden="true">
      <i class="limit" style=${share(limit)}></i>
      <i class="reserved" style=${share(reserved)}></i>
      <i class="used" style=${share(used)}></i>
    </span>
    <span class="figures">${text.filter(Boolean).join(" · ")}</span>
  </div>`;
}

export function MeterKey() {
  return html`<p class="key">
    <span><i class="used"></i>used</span>
    <span><i class="reserved"></i>reserved</span>
    <span><i class="limit"></i>limit</span>
  </p>`;
}

/** A list of names and values. */
export function Facts({ rows }) {
  const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<dl class="facts">
    ${shown.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

const STEP = 100;
/** What the keyboard opens a row with. */
export const ROW_LINK = "tr > :first-child a";

/**
 * A table whose columns sort: `[{key, title, of, show, number}]`. Rows beyond a hundred are shown
 * on demand. Arrow keys walk the rows, Enter opens one.
 */
export function Table({ columns, rows, sort, onSort, keyOf, hrefOf, label, empty }) {
  const [shown, show] = useState(STEP);
  const body = useRef(null);
  const ordered = useMemo(() => order(rows, columns, sort), [rows, sort && sort.key, sort && sort.down]);
  const walk = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!step || event.target.tagName === "INPUT") return;
    const links = [...body.current.querySelectorAll(ROW_LINK)];
    // From any link of a row, to those above and below.
    const row = document.activeElement.closest("tr");
    const next = links[links.findIndex((link) => link.closest("tr") === row) + step];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  };
  if (!rows.length) return html`<${Empty}>${empty}<//>`;
  return html`<div class="scroll">
    <table class=${hrefOf ? "linked" : ""} aria-label=${label}>
      <thead>
        <tr>${columns.map((c) => html`<${Heading} column=${c} sort=${sort} onSort=${onSort} />`)}</tr>
      </thead>
      <tbody ref=${body} onKeyDown=${walk}>
        ${ordered.slice(0, shown).map(
          (row) => html`<tr key=${keyOf(row)} onClick=${hrefOf && opener(hrefOf(row))}>
            ${columns.map((c) => html`<td class=${c.number ? "number" : ""} data-title=${c.title}>
              ${(c.show || c.of)(row)}</td>`)}
          </tr>`,
        )}
      </tbody>
    </table>
    ${ordered.length > shown &&
    html`<p class="more"><button onClick=${() => show(shown + 5 * STEP)}>
      Show more (${(ordered.length - shown).toLocaleString("en")} left)</button></p>`}
  </div>`;
}

/** The whole row is a link for a mouse; the keyboard has the one in the first column. */
function opener(href) {
  return (event) => {
    if (event.target.closest("a, button") || String(getSelection())) return;
    go(href);
  };
}

function Heading({ column, sort, onSort }) {
  const on = sort && sort.key === column.key;
  const state = on ? (sort.down ? "descending" : "ascending") : "none";
  const turn = () => onSort({ key: column.key, down: on ? !sort.down : Boolean(column.number) });
  return html`<th scope="col" class=${column.number ? "number" : ""} aria-sort=${state}>
    ${onSort && column.of
      ? html`<button onClick=${turn}>${column.title}<i aria-hidden="true">${
          on ? (sort.down ? "▾" : "▴") : ""
        }</i></button>`
      : column.title}
  </th>`;
}

const { compare } = new Intl.Collator("en", { numeric: true });

function order(rows, columns, sort) {
  const column = sort && columns.find((c) => c.key === sort.key);
  if (!column) return rows;
  const sign = sort.down ? -1 : 1;
  // What is compared is looked up once a row, not at every comparison.
  const keyed = rows.map((row) => [column.of(row), row]);
  keyed.sort(([x], [y]) =>
    sign * (typeof x === "number" && typeof y === "number" ? x - y : compare(`${x}`, `${y}`)));
  return keyed.map(([, row]) => row);
}

/** A field that filters; `/` goes there. */
export function Filter({ value, onInput, label, children }) {
  return html`<div class="filter" role="search">
    <input type="search" data-filter="" value=${value} placeholder="${label}  ( / )" aria-label=${label}
      onInput=${(event) => onInput(event.target.value)} />
    ${children}
  </div>`;
}

export function Choice({ value, options, onPick, label }) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(([key, text]) => html`<button aria-pressed=${value === key}
      onClick=${() => onPick(key)}>${text}</button>`)}
  </div>`;
}

/** A command to type elsewhere, and a button that copies it. */
export function Command({ text }) {
  const [done, set] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<p class="command"><code>${text}</code>
    ${navigator.clipboard && html`<button onClick=${copy}>${done ? "Copied" : "Copy"}</button>`}</p>`;
}

/** State in the query of the address: filters survive a reload and travel with a link. */
export function useQuery(name, start) {
  const read = () => new URLSearchParams(location.search).get(name) ?? start;
  const [value, set] = useState(read);
  useEffect(() => {
    // A link to the same page with another query, or the way back from it.
    const moved = () => set(read());
    addEventListener("popstate", moved);
    const stop = onMove(moved);
    return () => {
      removeEventListener("popstate", moved);
      stop();
    };
  }, [name]);
  const put = (next) => {
    const query = new URLSearchParams(location.search);
    if (next === start || next === "") query.delete(name);
    else query.set(name, next);
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    set(next);
  };
  return [value, put];
}

export function useSort(start) {
  const [text, put] = useQuery("sort", start);
  const sort = { key: text.replace(/^-/, ""), down: text.startsWith("-") };
  return [sort, ({ key, down }) => put(`${down ? "-" : ""}${key}`)];
}
