// The versions of a job: who made which and when, what each changed, and going back to one.

import { html } from "./vendor/htm-preact.js";
import { get, post } from "./api.js";
import { confirm, say } from "./dialog.js";
import { useRead } from "./live.js";
import { Badge, Card, Empty, Problem, Wait, When } from "./parts.js";
import { count, plural } from "./units.js";

function shown(value) {
  return value === null || value === undefined ? "–" : JSON.stringify(value);
}

/** Asks with what would differ, and does just that or nothing. */
async function revert(path, key, version) {
  let planned;
  try {
    planned = await post(`${path}/revert?dry_run=true`, { version });
  } catch (error) {
    say(error.message);
    return;
  }
  if (planned.became === "unchanged") {
    say(`${key} has the spec of version ${version} already.`);
    return;
  }
  confirm({
    what: `Go back to version ${version} of ${key}?`,
    why: planned.changes.map((change) => html`<code>${change.path}</code>: ${shown(change.old)} → ${shown(change.new)}<br />`),
    verb: "Go back",
    act: () => post(`${path}/revert?expect=${planned.expect}`, { version }),
    done: () => say(`${key} goes back to version ${version}.`),
  });
}

export function Versions({ job, path, turn }) {
  const key = `${job.user}/${job.name}`;
  const read = useRead((signal) => get(`${path}/versions`, signal), [key, job.version, turn]);
  const rows = read.value ? [...read.value.item.versions].reverse() : [];
  const live = !job.ended_at;
  return html`<${Card} title="Versions" aside=${rows.length ? plural(rows.length, "version") : ""} kind="versions">
    <${Problem} error=${read.error} />
    ${rows.length === 0 && (read.wait ? html`<${Wait} />` : html`<${Empty}>None is kept.<//>`)}
    <ol class="events">
      ${rows.map((row) => html`<li key=${row.version} class=${row.rolled_back ? "bad" : row.current ? "good" : "calm"}>
        <${When} at=${row.at} />
        <span><b>${row.version}</b> ${row.change} <small>by ${row.by}</small>
          ${row.current && html` <${Badge} tone="good">now<//>`}
          ${row.rolled_back && html` <${Badge} tone="bad">rolled back, ${plural(row.rolled_back.failures, "failure")}<//>`}
          ${!row.current && row.tasks > 0 && html` <small>${count(row.tasks)} still run it</small>`}
          ${live && !row.current && html` <button class="small" onClick=${() => revert(path, key, row.version)}>Go back…</button>`}
        </span>
      </li>`)}
    </ol>
  <//>`;
}
