// The API for readers: every operation of the document that the master makes of itself, with a line
// for curl, its fields, and a form that sends what only reads.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { get, look } from "../api.js";
import { indented } from "../indent.js";
import { useRead } from "../live.js";
import { Card, Command, Empty, Filter, Page, Problem, Wait, useQuery } from "../parts.js";
import { Schemas } from "../schema.js";
import { plural } from "../units.js";

const JSON_TYPE = "application/json";
const EVENTS = "text/event-stream";
/** Characters of an answer that are shown. */
const MOST_SHOWN = 200_000;

/** Each operation with what readers look for. */
function operations(paths) {
  return Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, said]) => {
      const [status, good] = Object.entries(said.responses).find(([code]) => code < "300");
      const [media = "", content] = Object.entries(good.content || {})[0] || [];
      const [sent, body] = Object.entries((said.requestBody || {}).content || {})[0] || [];
      const op = { ...said, id: said.operationId, method: method.toUpperCase(), path, status, media, content, sent, body };
      op.headers = Object.entries(good.headers || {}).map(([name, { schema, description }]) => ({
        name,
        schema,
        about: description,
      }));
      op.tries = op.method === "GET" && [JSON_TYPE, "text/plain"].includes(media);
      op.errors = Object.entries(said.responses).filter(([code]) => code !== status);
      const named = [body, content].map((one) => (one && one.schema && one.schema.$ref) || "");
      const words = [op.id, op.method, path, ...said.tags, said.summary, said.description, ...named,
        ...said.parameters.map((one) => one.name), ...op.errors.map(([, error]) => error.description)];
      op.text = words.join(" ").toLowerCase();
      return op;
    }));
}

/** The path with what was filled in, the query with what was given. */
function address(op, values) {
  const given = (name) => encodeURIComponent((values[name] || "").trim()).replace(/'/g, "%27");
  const path = op.path.replace(/\{(\w+)\}/g, (_, name) => given(name) || name.toUpperCase());
  const query = op.parameters
    .filter((one) => one.in === "query" && given(one.name))
    .map((one) => `${one.name}=${given(one.name)}`);
  return path + (query.length ? `?${query.join("&")}` : "");
}

function curl(op, values) {
  const secure = location.protocol === "https:";
  const words = ["curl", op.media === EVENTS ? "-sN" : "-s"];
  // A change is for the leader, wherever it is sent.
  if (op.method !== "GET") words.push(secure ? "--location-trusted" : "-L", "-X", op.method);
  if (secure) words.push("--cacert authority.pem");
  if (secure && op.security.length) words.push('-H "authorization: Bearer $TOKEN"');
  if (op.sent) words.push(`-H 'content-type: ${op.sent}'`);
  if (op.sent) words.push(op.sent === JSON_TYPE ? "--data @body.json" : "--data-binary @content");
  const url = location.origin + address(op, values);
  return [...words, /^[\w:/.%-]+$/.test(url) ? url : `'${url}'`].join(" ");
}

/** Text with `code` in it. */
function Prose({ text }) {
  return (text || "").split("`").map((part, n) => (n % 2 ? html`<code>${part}</code>` : part));
}

/** Fields below a field are drawn when they are opened: types may hold themselves. */
function Inner({ schemas, schema, rows, sent }) {
  const [shown, show] = useState(false);
  const { properties, oneOf, anyOf, enum: values } = schemas.open(schema);
  const forms = !properties && (oneOf || anyOf || values);
  return html`<details onToggle=${(event) => show(event.currentTarget.open)}>
    <summary>${plural(rows.length, forms ? "form" : "field")}</summary>
    ${shown && html`<${Rows} schemas=${schemas} rows=${rows} sent=${sent} />`}
  </details>`;
}

function Row({ schemas, row, sent }) {
  const { name, schema, required, about, untyped } = row;
  const rows = schema ? schemas.rows(schema) : [];
  return html`<li>
    <p><code class="name">${name}</code>
      ${schema && !untyped && html`<span class="type">${schemas.words(schema)}</span>`}
      ${sent && required && html`<em>required</em>`}</p>
    ${about && html`<p class="about"><${Prose} text=${about} /></p>`}
    ${rows.length > 0 && html`<${Inner} schemas=${schemas} schema=${schema} rows=${rows} sent=${sent} />`}
  </li>`;
}

function Rows({ schemas, rows, sent }) {
  return html`<ul class="fields">${rows.map((row) => html`<${Row} schemas=${schemas} row=${row} sent=${sent} />`)}</ul>`;
}

/** A body: its type, and its fields at once. */
function Body({ schemas, media, content, sent = false }) {
  const schema = content && (content["x-event-data"] || content.schema);
  if (!schema) return html`<p class="about">${media || "No body."}</p>`;
  const rows = schemas.rows(schema);
  return html`<p class="about">${media}${media === EVENTS ? ", each event" : ""}:<span class="type">${schemas.words(schema)}</span></p>
    <p class="about"><${Prose} text=${schemas.open(schema).description} /></p>
    ${rows.length > 0 && html`<${Rows} schemas=${schemas} rows=${rows} sent=${sent} />`}`;
}

function Input({ id, parameter, value, onInput }) {
  const { name, schema, required } = parameter;
  const words = schema.enum || (schema.type === "boolean" ? ["true", "false"] : null);
  const take = (event) => onInput(name, event.target.value);
  if (words) {
    return html`<select id=${id} value=${value} required=${required} onChange=${take}>
      <option value=""></option>${words.map((word) => html`<option>${word}</option>`)}</select>`;
  }
  return html`<input id=${id} value=${value} required=${required} onInput=${take} autocomplete="off"
    pattern=${required ? ".*\\S.*" : undefined}
    spellcheck="false" inputmode=${schema.type === "integer" ? "numeric" : "text"} />`;
}

/** Parameters as fields, and as a form where sending them changes nothing. */
function Parameters({ schemas, op, values, onInput }) {
  if (!op.parameters.length) return html`<p class="about">None.</p>`;
  return html`<ul class="fields">${op.parameters.map((parameter) => {
    const id = `${op.id}-${parameter.name}`;
    const asked = op.tries && parameter.in !== "header";
    const name = html`<code class="name">${parameter.name}</code>`;
    return html`<li class=${asked ? "asked" : ""}><div>
      <p>${asked ? html`<label for=${id}>${name}</label>` : name}
        <span class="type">${parameter.in}, ${schemas.words(parameter.schema)}</span>
        ${parameter.required && html`<em>required</em>`}</p>
      <p class="about"><${Prose} text=${parameter.description} /></p></div>
      ${asked && html`<${Input} id=${id} parameter=${parameter} value=${values[parameter.name] || ""} onInput=${onInput} />`}
    </li>`;
  })}</ul>`;
}

/** JSON with a field a line, as far as it is shown; anything else as it came. */
function readable(text) {
  let shown = text;
  try {
    shown = indented(text);
  } catch {
    // Text is text.
  }
  return shown.length > MOST_SHOWN ? `${shown.slice(0, MOST_SHOWN)}\n… cut off here` : shown;
}

function Answer({ state }) {
  if (state.error) return html`<${Problem} error=${state.error} />`;
  if (!state.answer) return null;
  const { status, index, read, text } = state.answer;
  const facts = [`status ${status}`, index && `cell-index ${index}`, read && `cell-read ${read}`];
  return html`<p class="about" role="status">${facts.filter(Boolean).join(" · ")}</p>
    <pre class="words" tabindex="0" aria-label="Answer">${readable(text)}</pre>`;
}

/** All errors have one shape. */
function Refused({ schemas }) {
  const row = { name: "body", schema: { $ref: "#/components/schemas/ApiError" } };
  return html`<${Rows} schemas=${schemas} rows=${[row]} />`;
}

function Details({ schemas, op }) {
  const [values, set] = useState({});
  const [state, put] = useState({ answer: null, error: null, busy: false });
  const onInput = (name, value) => set((before) => ({ ...before, [name]: value }));
  const send = async (event) => {
    event.preventDefault();
    put({ ...state, busy: true });
    try {
      put({ answer: await look(address(op, values)), error: null, busy: false });
    } catch (error) {
      put({ answer: null, error, busy: false });
    }
  };
  const given = html`<h4>Parameters</h4>
    <${Parameters} schemas=${schemas} op=${op} values=${values} onInput=${onInput} />`;
  return html`<div class="details" id="${op.id}-details">
    ${op.description && html`<p><${Prose} text=${op.description} /></p>`}
    ${op.status === "101"
      ? html`<p>A connection that is handed over; the command line speaks it:</p><${Command} text="cell exec USER/JOB/INDEX" />`
      : html`<${Command} text=${curl(op, values)} />`}
    ${op.tries
      ? html`<form onSubmit=${send}>${given}
          <p class="buttons"><button class="primary" disabled=${state.busy}>Try it</button></p></form>
          <${Answer} state=${state} />`
      : given}
    ${op.sent && html`<h4>Request</h4><${Body} schemas=${schemas} media=${op.sent} content=${op.body} sent />`}
    <h4>Answer <span class="type">${op.status}</span></h4>
    <${Body} schemas=${schemas} media=${op.media} content=${op.content} />
    ${op.headers.length > 0 && html`<h4>Headers of the answer</h4><${Rows} schemas=${schemas} rows=${op.headers} />`}
    <h4>Errors</h4>
    <ul class="errors">${op.errors.map(([code, error]) => html`<li><code>${code}</code>
      <span>${error.description.replace(/^Codes: |\.$/g, "")}</span></li>`)}</ul>
    <${Refused} schemas=${schemas} />
  </div>`;
}

function Operation({ schemas, op, target, onReached }) {
  const [shown, show] = useState(target === op.id);
  const box = useRef(null);
  useEffect(() => {
    if (target !== op.id) return;
    show(true);
    box.current.scrollIntoView();
    box.current.querySelector("button").focus({ preventScroll: true });
    onReached();
  }, [target]);
  const turn = () => {
    show(!shown);
    // The address in the bar is that of what was opened last.
    if (!shown) history.replaceState(null, "", `#${op.id}`);
  };
  return html`<li class="operation" id=${op.id} ref=${box}>
    <h3><button aria-expanded=${shown} aria-controls="${op.id}-details" onClick=${turn}>
        <b class="method ${op.method.toLowerCase()}">${op.method}</b><span><code>${op.path}</code> <${Prose} text=${op.summary} /></span></button>
      <a href="#${op.id}" aria-label="Link to ${op.id}">#</a></h3>
    ${shown && html`<${Details} schemas=${schemas} op=${op} />`}
  </li>`;
}

/** What the address names, until it was reached or is forgotten: nobody is led there again. */
function useTarget() {
  const read = () => location.hash.slice(1);
  const [target, set] = useState(read);
  useEffect(() => {
    const moved = () => set(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return [target, () => set("")];
}

const groupId = (name) => `of-${name}`;

/** Whether what an address names is among these. */
const holds = (ops, target) =>
  ops.some((op) => op.id === target || op.tags.some((name) => groupId(name) === target));

function Groups({ tags, found, schemas, target, onReached }) {
  useEffect(() => {
    // The browser looked for it before it was there.
    const group = tags.some(({ name }) => groupId(name) === target) && document.getElementById(target);
    if (!group) return;
    group.scrollIntoView();
    onReached();
  }, [target, found.length]);
  const groups = tags
    .map(({ name }) => [name, found.filter((op) => op.tags.includes(name))])
    .filter(([, ops]) => ops.length);
  return html`<nav class="groups" aria-label="Kinds of things">
      ${groups.map(([name, ops]) => html`<a href="#${groupId(name)}">${name} <small>${ops.length}</small></a>`)}</nav>
    ${groups.map(([name, ops]) => html`<div id=${groupId(name)} key=${name} class="group"><${Card} title=${name[0].toUpperCase() + name.slice(1)}>
      <ul>${ops.map((op) => html`<${Operation} key=${op.id} schemas=${schemas} op=${op} target=${target} onReached=${onReached} />`)}</ul><//></div>`)}`;
}

export default function Docs() {
  const { value: said, error } = useRead((signal) => get("/v1/openapi.json", signal), []);
  const [text, setText] = useQuery("q", "");
  const [target, forget] = useTarget();
  const all = useMemo(() => (said ? operations(said.paths) : []), [said]);
  const schemas = useMemo(() => said && new Schemas(said.components.schemas), [said]);
  const words = text.toLowerCase().split(/\s+/);
  const found = all.filter((op) => words.every((word) => op.text.includes(word)));
  useEffect(() => {
    // A link to what its own search does not find, or the way back to it.
    if (!holds(all, target) || holds(found, target)) return;
    setText("");
    history.replaceState(null, "", `#${target}`);
  }, [said, target]);
  const search = (typed) => {
    forget();
    setText(typed);
  };
  return html`<${Page} title="API">
    <${Filter} value=${text} onInput=${search} label="Search by name, path, parameter, type or error">
      <span class="found" role="status">${said && plural(found.length, "operation")}</span>
    <//>
    <${Problem} error=${error} />
    ${!said && !error && html`<${Wait} />`}
    ${said && html`<div class="docs">
      <p class="faint">What a master of version ${said.info.version} answers, as it says of itself.
        The same for programs, as OpenAPI ${said.openapi}:</p>
      <${Command} text=${curl(all.find((op) => op.id === "openApi"), {})} />
      ${found.length
        ? html`<${Groups} tags=${said.tags} found=${found} schemas=${schemas} target=${target}
            onReached=${forget} />`
        : html`<${Empty}>No operation has all of these words.<//>`}
    </div>`}
  <//>`;
}
