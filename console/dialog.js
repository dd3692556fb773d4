// Dialogs: a question before anything is changed, the token, the keys. The browser's own element
// keeps the focus inside and gives it back.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { setToken, token } from "./api.js";
import { Problem } from "./parts.js";

let host = null;

/** Shows a component in a dialog; it gets `close`. One at a time. */
export function open(Component, props = {}) {
  if (host) return;
  host = document.createElement("div");
  document.body.append(host);
  const close = () => {
    if (!host) return;
    render(null, host);
    host.remove();
    host = null;
  };
  render(html`<${Frame} close=${close}><${Component} close=${close} ...${props} /><//>`, host);
}

function Frame({ close, children }) {
  const box = useRef(null);
  useEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    // The focus may be on a button at the end; a long one is read from its top.
    dialog.scrollTop = 0;
    return () => dialog.open && dialog.close();
  }, []);
  return html`<dialog ref=${box} onClose=${close} aria-labelledby="dialog-title">${children}</dialog>`;
}

/**
 * Asks before something is done: `what` in a heading, `why` in a sentence, `act` is the doing.
 * What the master refuses is shown where it was asked for.
 */
export function confirm({ what, why, verb, danger = false, act, done }) {
  open(Confirm, { what, why, verb, danger, act, done });
}

function Confirm({ close, what, why, verb, danger, act, done }) {
  const [error, fail] = useState(null);
  const [busy, set] = useState(false);
  const go = async (event) => {
    event.preventDefault();
    set(true);
    try {
      const answer = await act();
      close();
      if (done) done(answer);
    } catch (problem) {
      fail(problem);
      set(false);
    }
  };
  return html`<form onSubmit=${go}>
    <h2 id="dialog-title">${what}</h2>
    <p>${why}</p>
    <${Problem} error=${error} />
    <p class="buttons">
      <button type="button" autofocus onClick=${close}>Leave it</button>
      <button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy}>${verb}</button>
    </p>
  </form>`;
}

/** Who are you? Only cells with identities ask. */
export function askToken(done) {
  open(Token, { done });
}

function Token({ close, done }) {
  const field = useRef(null);
  const keep = (event) => {
    event.preventDefault();
    setToken(field.current.value.trim());
    close();
    done();
  };
  const forget = () => {
    setToken("");
    close();
    done();
  };
  return html`<form onSubmit=${keep}>
    <h2 id="dialog-title">Who asks?</h2>
    <p>This cell knows its users. Paste your token: it is in the context that was made for you,
      by default in <code>~/.config/cellwright/contexts.toml</code>. It stays in this tab and is
      forgotten with it. You can do here what you may do, and nothing else.</p>
    <label>Token <input ref=${field} type="password" autocomplete="off" autofocus required /></label>
    <p class="buttons">
      ${token() && html`<button type="button" onClick=${forget}>Forget the present one</button>`}
      <button type="submit" class="primary">Continue</button>
    </p>
  </form>`;
}

const toasts = [];
/** A sentence that goes away by itself; also told to screen readers. */
export function say(text) {
  let place = document.getElementById("said");
  if (!place) {
    place = document.createElement("div");
    place.id = "said";
    place.setAttribute("role", "status");
    document.body.append(place);
  }
  toasts.push(text);
  const show = () => {
    place.textContent = toasts.join(" ");
    place.hidden = toasts.length === 0;
  };
  show();
  setTimeout(() => {
    toasts.shift();
    show();
  }, 5000);
}
