// Running a job: its spec as JSON, tried first, and then made so if nobody changed it meanwhile.

import { html, useRef, useState } from "./vendor/htm-preact.js";
import { post } from "./api.js";
import { open, say } from "./dialog.js";
import { Problem } from "./parts.js";

const SPEC = `{"name": "hello", "count": 1, "priority": 100,
 "task": {"limits": {"cpu": 100, "ram": 33554432},
          "command": ["sleep", "1000"]}}`;

/** Asks for a job in a dialog. */
export function runJob() {
  open(Run);
}

/** What was done, or would be. */
function told({ user, name, became, version, closed_update, dry_run }) {
  const job = `${user}/${name}`;
  if (became === "unchanged") return `${job} is so already, at version ${version}.`;
  const will = dry_run ? "would be" : "is being";
  if (became === "created") return `${job} ${dry_run ? "would be" : "was"} created.`;
  const closed = closed_update ? ` The update to version ${closed_update}, which is complete, ${dry_run ? "would be" : "was"} closed.` : "";
  return `${job} ${will} updated to version ${version}.${closed}`;
}

const word = (value) => (value === null || value === undefined ? "nothing" : JSON.stringify(value));

function Tried({ answer }) {
  return html`<div role="status">
    <p>${told(answer)}</p>
    ${answer.changes.length > 0 &&
    html`<ul class="changes">${answer.changes.map(({ path, old, new: now }) =>
      html`<li key=${path}><code>${path}</code>: ${word(old)} → ${word(now)}</li>`)}</ul>`}
  </div>`;
}

function Run({ close }) {
  const [spec, setSpec] = useState(SPEC);
  const owner = useRef(null);
  const [error, fail] = useState(null);
  const [tried, set] = useState(null);
  const ask = async (query) => {
    fail(null);
    try {
      const whose = owner.current.value.trim();
      const body = { spec: JSON.parse(spec), ...(whose && { owner: whose }) };
      return await post(`/v1/apply?${query}`, body);
    } catch (problem) {
      set(null);
      fail(problem);
      return null;
    }
  };
  const look = async (event) => {
    event.preventDefault();
    const answer = await ask("dry_run=true");
    if (answer) set(answer);
  };
  const run = async () => {
    const answer = await ask(`expect=${tried.expect}`);
    if (!answer) return;
    close();
    say(told(answer));
  };
  const edit = (event) => {
    setSpec(event.target.value);
    set(null);
  };
  return html`<form onSubmit=${look}>
    <h2 id="dialog-title">Run a job</h2>
    <label>Owner <input ref=${owner} name="owner" autocomplete="off" placeholder="you" onInput=${() => set(null)} /></label>
    <label>Spec <textarea name="spec" rows="12" spellcheck="false" required value=${spec} onInput=${edit}></textarea></label>
    <${Problem} error=${error} />
    ${tried && html`<${Tried} answer=${tried} />`}
    <p class="buttons">
      <button type="button" onClick=${close}>Leave it</button>
      <button type="submit" class=${tried ? "" : "primary"}>Try</button>
      <button type="button" class="primary" disabled=${!tried || tried.became === "unchanged"} onClick=${run}>Run</button>
    </p>
  </form>`;
}
