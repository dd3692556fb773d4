// Who may have how much in which band, and what is charged already.

import { html, useMemo } from "../vendor/htm-preact.js";
import { all } from "../api.js";
import { useRead } from "../live.js";
import { Badge, Card, Empty, Filter, Link, Page, Problem, Wait, When, to, useQuery } from "../parts.js";
import { amount, plural, words } from "../units.js";

/** Amounts beyond any machine mean that nobody counts. */
const ENDLESS = 2 ** 59;
const NEVER = 2 ** 63;

const TITLES = { cpu: "CPU", ram: "Memory", disk: "Disk" };

function Share({ dimension, charged, granted }) {
  const endless = granted >= ENDLESS;
  const share = endless || !granted ? 0 : Math.min(100, (100 * charged) / granted);
  const full = !endless && charged > granted;
  return html`<td class="number" data-title=${TITLES[dimension]}>
    <span class="mini ${full ? "bad" : ""}"><i style=${{ width: `${share}%` }}></i></span>
    ${amount(dimension, charged)} <small>of ${endless ? "any" : amount(dimension, granted)}</small></td>`;
}

function User({ user }) {
  const none = { cpu: 0, ram: 0, disk: 0 };
  return html`<${Card} title=${html`<${Link} to=${`${to("jobs")}?q=${encodeURIComponent(`${user.name}/`)}`}>${user.name}<//>`}
    aside=${plural(user.live_jobs, "live job")}>
    ${user.capabilities.length > 0 && html`<p class="faint">May also: ${user.capabilities.map(words).join(", ")}.</p>`}
    ${user.quota.length
      ? html`<div class="scroll"><table class="stacked" aria-label="Quota of ${user.name}">
          <thead><tr><th>Band</th>${Object.values(TITLES).map((title) => html`<th class="number">${title}</th>`)}<th>Until</th><th></th></tr></thead>
          <tbody>${user.quota.map((row) => {
            const granted = row.quota ? row.quota.amount : none;
            return html`<tr><td><b>${words(row.band)}</b></td>
              ${Object.keys(TITLES).map((d) => html`<${Share} dimension=${d} charged=${row.charged[d]} granted=${granted[d]} />`)}
              <td data-title="Until">${row.quota && row.quota.until < NEVER ? html`<${When} at=${row.quota.until} />` : "–"}</td>
              <td data-title="">${row.exceeded && html`<${Badge} tone="bad">exceeded<//>`}</td></tr>`;
          })}</tbody></table></div>`
      : html`<${Empty}>No quota: only free work of priority 0.<//>`}
  <//>`;
}

export default function Quota() {
  const read = useRead((signal) => all("/v1/users", 5000, signal), [], 5000);
  const [text, setText] = useQuery("q", "");
  const users = useMemo(
    () => (read.value ? read.value.items.filter((user) => user.name.includes(text.toLowerCase())) : []),
    [read.value, text],
  );
  return html`<${Page} title="Quota">
    <${Filter} value=${text} onInput=${setText} label="Filter by user">
      <span class="found" role="status">${plural(users.length, "user")}</span><//>
    <${Problem} error=${read.error} />
    ${read.wait && html`<${Wait} />`}
    ${users.slice(0, 200).map((user) => html`<${User} key=${user.name} user=${user} />`)}
    ${read.value && !users.length && html`<${Empty}>No user is like that.<//>`}
  <//>`;
}
