// The keyboard: everything has a place in the tab order, and what is used often has a key.

import { html } from "./vendor/htm-preact.js";
import { go, to } from "./parts.js";
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

function isTyping(target) {
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}

export function listen(turnTheme) {
  let went = 0;
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog")) return;
    if (isTyping(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const after = performance.now() - went < 1500;
    went = 0;
    const view = after && VIEWS.find(([key]) => key === event.key);
    if (view) go(view[2]);
    else if (event.key === "g") went = performance.now();
    else if (event.key === "/") focusFilter(event);
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

export function Keys({ close }) {
  const rows = [
    ...VIEWS.map(([key, title]) => [`g ${key}`, title]),
    ["/", "Go to the filter of the page"],
    ["↑ ↓ or k j", "Walk through the rows of a table"],
    ["← ↑ → ↓", "Walk through the machines of the map; Enter opens one"],
    ["t", "Light or dark"],
    ["?", "These keys"],
    ["Esc", "Leave a field or a dialog"],
  ];
  return html`<form method="dialog">
    <h2 id="dialog-title">Keys</h2>
    <dl class="facts keys">
      ${rows.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}
    </dl>
    <p class="buttons"><button class="primary" autofocus onClick=${close}>Close</button></p>
  </form>`;
}
