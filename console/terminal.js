// A session in a task: a terminal on the page, its bytes carried by a WebSocket that the master gives
// to its own pages alone, with the rights of whoever is before it.
//
// Keys go to the command, Tab included, so there is another way out: Shift+Tab.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ApiError, get, token } from "./api.js";
import { Problem } from "./parts.js";
import { BOLD, DIM, HIDDEN, INVERSE, ITALIC, STRIKE, Screen, UNDERLINE, painted } from "./screen.js";

const PROTOCOL = "cell-exec";
const TERM = "xterm-256color";
/** Lines above the screen that are kept. */
const MOST_PAST = 1000;
/** Bytes of input in one frame. */
const PIECE = 16 << 10;
const FRAME = { data: 0, problems: 1, resize: 3, exit: 5, failed: 6 };

/** Splits what comes into frames: a byte of kind, four of length, content. */
export class FrameReader {
  constructor(take) {
    this.take = take;
    this.rest = new Uint8Array(0);
  }

  feed(bytes) {
    let all = bytes;
    if (this.rest.length) {
      all = new Uint8Array(this.rest.length + bytes.length);
      all.set(this.rest);
      all.set(bytes, this.rest.length);
    }
    this.rest = all;
    while (all.length >= 5) {
      const end = 5 + new DataView(all.buffer, all.byteOffset + 1, 4).getUint32(0);
      if (all.length < end) break;
      const [kind, body] = [all[0], all.subarray(5, end)];
      all = all.subarray(end);
      // Before it is taken: whatever becomes of it, the next begins here.
      this.rest = all;
      this.take(kind, body);
    }
    this.rest = all.slice();
  }
}

function frame(kind, body) {
  const bytes = new Uint8Array(5 + body.length);
  bytes[0] = kind;
  new DataView(bytes.buffer).setUint32(1, body.length);
  bytes.set(body, 5);
  return bytes;
}

const WORD = /(?:[^\s"'\\]|\\.|"(?:[^"\\]|\\.)*"|'[^']*')+/g;

/** Words of a command as a shell would split them, quotes and backslashes heeded; or what is amiss. */
export function words(text) {
  // What is in no word opens something that nothing closes; left out, it would be another command.
  const [open] = text.replace(WORD, "").trim();
  if (open) {
    const message = open === "\\"
      ? "The command ends with a backslash, and nothing follows that it could be for."
      : `The command has a quote (${open}) that is not closed.`;
    throw new ApiError(0, { message, hint: "Nothing was run." });
  }
  const found = [];
  for (const [piece] of text.matchAll(WORD)) {
    found.push(
      piece.replace(/'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)/g, (_, raw, quoted, one) =>
        raw ?? (quoted === undefined ? one : quoted.replace(/\\(["\\$`])/g, "$1"))),
    );
  }
  return found;
}

/** One session: `on.data(bytes)`, `on.end({code, error})` once. */
class Session {
  constructor(path, command, size, on) {
    const query = new URLSearchParams({ command: JSON.stringify(command), terminal: size, term: TERM });
    this.path = `${path}?${query}`;
    this.on = on;
    this.over = false;
    const own = token();
    const place = `${location.protocol === "https:" ? "wss:" : "ws:"}//${location.host}${this.path}`;
    this.socket = new WebSocket(place, own ? [PROTOCOL, `cell-token.${own}`] : [PROTOCOL]);
    this.socket.binaryType = "arraybuffer";
    this.opened = false;
    const reader = new FrameReader((kind, body) => this.hear(kind, body));
    this.socket.onopen = () => {
      this.opened = true;
      on.open();
    };
    this.socket.onmessage = (event) => reader.feed(new Uint8Array(event.data));
    this.socket.onclose = () => this.closed();
  }

  hear(kind, body) {
    if (kind === FRAME.data || kind === FRAME.problems) {
      if (body.length) this.on.data(body);
    } else if (kind === FRAME.exit) {
      this.end({ code: new DataView(body.buffer, body.byteOffset, 4).getInt32(0) });
    } else if (kind === FRAME.failed) {
      this.end({ error: new ApiError(0, { message: new TextDecoder().decode(body) }) });
    }
  }

  async closed() {
    if (this.over) return;
    if (this.opened) {
      const message = "The session was ended: the task, or the right to it.";
      this.end({ error: new ApiError(0, { message }) });
      return;
    }
    // Why a WebSocket was refused is kept from pages; the same question in plain words is answered.
    try {
      await get(this.path);
    } catch (error) {
      const plain = error.code === "upgrade-required";
      const message = "The connection could not be opened; something on the way may not let it through.";
      this.end({ error: plain ? new ApiError(0, { message }) : error });
    }
  }

  end(how) {
    if (this.over) return;
    this.over = true;
    this.socket.close();
    this.on.end(how);
  }

  say(kind, body) {
    if (!this.over && this.socket.readyState === WebSocket.OPEN) this.socket.send(frame(kind, body));
  }

  type(text) {
    const bytes = new TextEncoder().encode(text);
    for (let at = 0; at < bytes.length; at += PIECE) {
      this.say(FRAME.data, bytes.subarray(at, at + PIECE));
    }
  }

  resize(rows, columns) {
    const body = new DataView(new ArrayBuffer(4));
    body.setUint16(0, rows);
    body.setUint16(2, columns);
    this.say(FRAME.resize, new Uint8Array(body.buffer));
  }

  leave() {
    this.over = true;
    this.socket.close();
  }
}

const ARROWS = { ArrowUp: "A", ArrowDown: "B", ArrowRight: "C", ArrowLeft: "D", Home: "H", End: "F" };
const NUMBERED = { Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21 };
const FIRST = { F1: "P", F2: "Q", F3: "R", F4: "S" };
const SIMPLE = { Enter: "\r", Backspace: "\x7f", Tab: "\t", Escape: "\x1b" };

/** What a key says to a program; nothing for what the browser or the field makes of it. */
function spoken(event, appKeys) {
  const { key, ctrlKey, altKey, shiftKey, metaKey } = event;
  if (metaKey || event.isComposing) return null;
  const held = 1 + (shiftKey ? 1 : 0) + (altKey ? 2 : 0) + (ctrlKey ? 4 : 0);
  if (ARROWS[key]) {
    if (held > 1) return `\x1b[1;${held}${ARROWS[key]}`;
    return `\x1b${appKeys ? "O" : "["}${ARROWS[key]}`;
  }
  if (NUMBERED[key]) return `\x1b[${NUMBERED[key]}${held > 1 ? `;${held}` : ""}~`;
  if (FIRST[key]) return held > 1 ? `\x1b[1;${held}${FIRST[key]}` : `\x1bO${FIRST[key]}`;
  if (SIMPLE[key]) return (altKey ? "\x1b" : "") + SIMPLE[key];
  if (key.length !== 1) return null;
  // Together with Shift, and for pasting, they are the browser's.
  if (ctrlKey && !altKey) {
    if (shiftKey || key === "v") return null;
    if (key === " ") return "\0";
    return /[a-z[\\\]^_]/.test(key) ? String.fromCharCode(key.charCodeAt(0) & 31) : null;
  }
  return altKey && !ctrlKey ? `\x1b${key}` : null;
}

const WORDS = [[BOLD, "bold"], [DIM, "dim"], [ITALIC, "italic"], [UNDERLINE, "under"], [STRIKE, "strike"]];

function dress(span, { fg, bg, flags }) {
  const [front, back] = flags & INVERSE ? [bg ?? "back", fg ?? "text"] : [fg, bg];
  const names = WORDS.filter(([flag]) => flags & flag).map(([, name]) => name);
  const paint = (colour, letter, property) => {
    if (colour === null) return;
    if (colour === "back" || colour === "text" || colour < 16) names.push(`${letter}-${colour}`);
    else span.style[property] = painted(colour);
  };
  paint(flags & HIDDEN ? back ?? "back" : front, "f", "color");
  paint(back, "b", "backgroundColor");
  span.className = names.join(" ");
}

/** Puts a line's pieces into its element; `cursor` is the column it is at, or -1. */
function fill(element, line, cursor) {
  const parts = [];
  const add = (text, style, at) => {
    if (!text && !at) return;
    const span = document.createElement("span");
    span.textContent = text || " ";
    dress(span, style);
    if (at) span.classList.add("cursor-cell");
    parts.push(span);
  };
  const text = (from, end) => line.cells.slice(from, end).join("");
  for (const { from, end, style } of line.runs(cursor + 1)) {
    if (cursor >= from && cursor < end) {
      add(text(from, cursor), style, false);
      add(text(cursor, cursor + 1), style, true);
      add(text(cursor + 1, end), style, false);
    } else add(text(from, end), style, false);
  }
  element.replaceChildren(...parts);
}

/** Keeps elements as the screen has its lines; what left the top stays above. */
class Painter {
  constructor(screen, past, present) {
    this.screen = screen;
    this.past = past;
    this.present = present;
    this.elements = new WeakMap();
    this.at = null;
  }

  element(line) {
    let found = this.elements.get(line);
    if (!found) {
      found = document.createElement("div");
      this.elements.set(line, found);
      line.dirty = true;
    }
    return found;
  }

  paint() {
    const { screen } = this;
    for (const line of screen.past.splice(0)) {
      const element = this.element(line);
      fill(element, line, -1);
      this.past.append(element);
    }
    while (this.past.childElementCount > MOST_PAST) this.past.firstElementChild.remove();
    const here = screen.visible ? screen.lines[screen.row] : null;
    if (this.at) this.at.dirty = true;
    if (here) here.dirty = true;
    this.at = here;
    const elements = screen.lines.map((line) => {
      const element = this.element(line);
      if (line.dirty) fill(element, line, line === here ? screen.column : -1);
      line.dirty = false;
      return element;
    });
    const same = elements.length === this.present.childElementCount
      && elements.every((element, i) => element === this.present.children[i]);
    if (!same) this.present.replaceChildren(...elements);
  }
}

/** How many characters fit. */
function measure(box, probe) {
  const cell = probe.getBoundingClientRect();
  const pad = getComputedStyle(box);
  const across = box.clientWidth - Number.parseFloat(pad.paddingLeft) - Number.parseFloat(pad.paddingRight);
  const along = box.clientHeight - Number.parseFloat(pad.paddingTop) - Number.parseFloat(pad.paddingBottom);
  const columns = Math.max(20, Math.min(500, Math.floor((across * probe.textContent.length) / cell.width)));
  const rows = Math.max(4, Math.min(200, Math.floor(along / cell.height)));
  return { rows, columns };
}

/** A terminal with one command on it. */
function Terminal({ path, command, label, onOpen, onEnd }) {
  const [box, past, present, probe, field] = [useRef(), useRef(), useRef(), useRef(), useRef()];
  const held = useRef(null);
  useEffect(() => {
    const { rows, columns } = measure(box.current, probe.current);
    const screen = new Screen(rows, columns, (text) => session.type(text));
    const painter = new Painter(screen, past.current, present.current);
    let pending = 0;
    const draw = () => {
      pending = 0;
      const el = box.current;
      const low = el.scrollHeight - el.scrollTop - el.clientHeight < 40;
      painter.paint();
      if (low) el.scrollTop = el.scrollHeight;
    };
    const soon = () => {
      if (!pending) pending = requestAnimationFrame(draw);
    };
    const session = new Session(path, command, `${rows}x${columns}`, {
      open: onOpen,
      data: (bytes) => {
        screen.feed(bytes);
        soon();
      },
      end: (how) => {
        screen.visible = false;
        soon();
        onEnd(how);
      },
    });
    const watcher = new ResizeObserver(() => {
      const size = measure(box.current, probe.current);
      if (size.rows === screen.rows && size.columns === screen.columns) return;
      screen.resize(size.rows, size.columns);
      session.resize(size.rows, size.columns);
      soon();
    });
    watcher.observe(box.current);
    held.current = { screen, session };
    field.current.focus();
    return () => {
      watcher.disconnect();
      cancelAnimationFrame(pending);
      session.leave();
    };
  }, []);
  const type = (text) => {
    held.current.session.type(text);
    box.current.scrollTop = box.current.scrollHeight;
  };
  const press = (event) => {
    // The page's own keys are for the page.
    event.stopPropagation();
    if (event.key === "Tab" && event.shiftKey) return;
    if (event.shiftKey && (event.key === "PageUp" || event.key === "PageDown")) {
      const by = box.current.clientHeight * (event.key === "PageUp" ? -0.9 : 0.9);
      box.current.scrollBy(0, by);
      event.preventDefault();
      return;
    }
    const said = spoken(event, held.current.screen.appKeys);
    if (said === null) return;
    event.preventDefault();
    type(said);
  };
  const typed = (event) => {
    if (event.isComposing) return;
    const text = event.target.value;
    event.target.value = "";
    if (text) type(text.replaceAll("\n", "\r"));
  };
  const paste = (event) => {
    event.preventDefault();
    const text = event.clipboardData.getData("text").replace(/\r?\n/g, "\r");
    // A paste that ends the bracket itself would be typed after it.
    const bare = text.replaceAll("\x1b", "");
    type(held.current.screen.pastes ? `\x1b[200~${bare}\x1b[201~` : bare);
  };
  const click = () => {
    if (!String(getSelection())) field.current.focus({ preventScroll: true });
  };
  return html`<div class="terminal" onMouseUp=${click}>
    <div class="screen" ref=${box} role="log" tabindex="-1" aria-live="off" aria-label="Screen of the session">
      <div ref=${past}></div><div ref=${present}></div>
      <span class="probe" ref=${probe} aria-hidden="true">${"M".repeat(50)}</span>
    </div>
    <textarea ref=${field} aria-label=${`${label}. Shift and Tab leave it.`} rows="1" spellcheck="false"
      autocomplete="off" autocapitalize="off" autocorrect="off"
      onKeyDown=${press} onInput=${typed} onCompositionEnd=${typed} onPaste=${paste}></textarea>
  </div>`;
}

/** A command to run where the task runs, and the terminal it runs on. */
export function Exec({ name, path, runs }) {
  const [text, set] = useState("sh");
  const [session, open] = useState(null);
  const [state, tell] = useState(null);
  const button = useRef(null);
  const begin = (event) => {
    event.preventDefault();
    try {
      const command = words(text);
      if (!command.length) return;
      tell("wait");
      open({ command, turn: (session ? session.turn : 0) + 1 });
    } catch (error) {
      tell({ error });
    }
  };
  const end = (how) => {
    tell(how);
    if (button.current) button.current.focus({ preventScroll: true });
  };
  const stop = () => {
    open(null);
    tell(null);
  };
  const live = session && (state === "wait" || state === "open");
  return html`<form class="exec" onSubmit=${begin}>
      <label>Command <input value=${text} onInput=${(event) => set(event.target.value)} spellcheck="false"
        autocomplete="off" autocapitalize="off" disabled=${live} required /></label>
      ${live
        ? html`<button type="button" ref=${button} onClick=${stop}>End the session</button>`
        : html`<button type="submit" class="primary" ref=${button} disabled=${!runs}>Open a terminal</button>`}
    </form>
    ${session && html`<${Terminal} key=${session.turn} path=${path} command=${session.command}
      label=${`Terminal in ${name}`} onOpen=${() => tell("open")} onEnd=${end} />`}
    <${Said} state=${state} runs=${runs} />`;
}

function Said({ state, runs }) {
  if (state && state.error) return html`<${Problem} error=${state.error} />`;
  let text = "Runs where the task runs, as its user and within its limits, and ends with it. It is audited.";
  if (!runs) text = "A terminal can be opened while the task runs.";
  if (state === "wait") text = "Connecting…";
  if (state === "open") text = "Keys go to the command. Shift+Tab leaves the terminal, Shift+PageUp shows what went by.";
  if (state && state.code !== undefined) text = `Ended with exit code ${state.code}.`;
  return html`<p class="faint" role="status">${text}</p>`;
}
