// The keyboard: everything has a place in the tab order, and what is used often has a key.

import { html } from "./vendor/htm-preact.js";
import { ROW_LINK, go, to } from "./parts.js";
import { open } from "./dialog.js";

/** Views by the key that follows `g`. */
export const VIEWS = [
  ["o", "Overview", to("")],
  ["j", "Jobs", to("jobs")],
  ["m", "Machines", to("machines")],
  ["p", "Pending", to("pending")],
  ["u", "Quota", to("quota")],
  ["s", "SQL", to("sql")],
];

/** What is looked up now and then: at the foot of the navigation, with a key as the views have. */
export const DOCS = to("docs");
const GOALS = [...VIEWS, ["a", "API", DOCS]];

function isTyping(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

export function listen(turnTheme) {
  /** When `g` was pressed; long ago at first, or a key on a fresh page would be taken for its second. */
  let went = -Infinity;
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const after = performance.now() - went < 1500;
    went = -Infinity;
    const view = after && GOALS.find(([key]) => key === event.key);
    if (view) go(view[2]);
    else if (event.key === "g") went = performance.now();
    else if (event.key === "/") focusFilter(event);
    else if ((event.key === "j" || event.key === "k") && !event.target.closest("tbody")) focusRow();
    else if (event.key === "?") open(Keys);
    else if (event.key === "t") turnTheme();
    else return;
    event.preventDefault();
  };
  document.addEventListener("keydown", press);
  return () => document.removeEventListener("keydown", press);
}

function focusFilter() {
  const field = document.querySelector("[data-filter]");
  if (field) {
    field.focus();
    field.select();
  }
}

/** Into the table of the page; from there on it walks by itself. */
function focusRow() {
  const link = document.querySelector(`main table.linked ${ROW_LINK}`);
  if (link) link.focus();
}

export function Keys({ close }) {
  const rows = [
    ...GOALS.map(([key, title]) => [`g ${key}`, title]),
    ["/", "Go to the filter of the page"],
    ["j k", "To the rows of a table, and through them, as ↓ ↑ there; Enter opens one"],
    ["← ↑ → ↓", "Walk through the machines of the map, Home and End to its ends; Enter opens one"],
    ["Ctrl+Enter", "Run the query on the SQL page"],
    ["Shift+Tab", "Leave a terminal, which has all other keys"],
    ["Shift+PageUp", "In a terminal: what went by; Shift+PageDown back"],
    ["t", "Light or dark"],
    ["?", "These keys"],
    ["Esc", "Leave a field or a dialog"],
  ];
  return html`<div>
    <h2 id="dialog-title">Keys</h2>
    <dl class="facts keys">
      ${rows.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}
    </dl>
    <p class="buttons"><button type="button" class="primary" autofocus onClick=${close}>Close</button></p>
  </div>`;
}
