// All machines in a table, from the same small picture as the map.

import { html, useMemo } from "../vendor/htm-preact.js";
import { DOWN, DRAINING, OVER, SHORT } from "../heat.js";
import { overview, useStore } from "../live.js";
import { Badge, Choice, Filter, Link, Page, Problem, Table, Wait, to, useQuery, useSort } from "../parts.js";
import { plural } from "../units.js";

function state_of(bits) {
  if (bits & DOWN) return ["down", "bad"];
  if (bits & OVER) return ["over-committed", "bad"];
  if (bits & DRAINING) return ["draining", "warn"];
  if (bits & SHORT) return ["short", "warn"];
  return ["up", "good"];
}

function share(key, title) {
  return {
    key,
    title,
    number: true,
    of: (row) => row.of(key),
    show: (row) => {
      const n = row.of(key);
      return n < 0 ? "–" : html`<span class="mini"><i style=${{ width: `${Math.min(100, n)}%` }}></i></span>${n} %`;
    },
  };
}

const COLUMNS = [
  {
    key: "name",
    title: "Machine",
    of: (row) => row.name,
    show: (row) => html`<${Link} to=${to("machines", row.name)}><b>${row.name}</b><//>`,
  },
  {
    key: "state",
    title: "State",
    of: (row) => state_of(row.of("state"))[0],
    show: (row) => html`<${Badge} tone=${state_of(row.of("state"))[1]}>${state_of(row.of("state"))[0]}<//>`,
  },
  { key: "tasks", title: "Tasks", number: true, of: (row) => row.of("tasks") },
  share("cpu_used", "CPU used"),
  share("cpu_reserved", "CPU reserved"),
  share("cpu_limit", "CPU limit"),
  share("ram_used", "Memory used"),
  share("ram_reserved", "Memory reserved"),
  share("ram_limit", "Memory limit"),
];

const STATES = [["all", "All"], ["down", "Down"], ["draining", "Draining"], ["short", "Short"]];
const BITS = { down: DOWN, draining: DRAINING, short: SHORT };

function stands(bits, state) {
  return state === "all" || bits & BITS[state];
}

export default function Machines() {
  const store = useStore(overview);
  const [text, setText] = useQuery("q", "");
  const [state, setState] = useQuery("state", "all");
  const [sort, setSort] = useSort("name");
  const rows = useMemo(() => {
    const { machines } = store;
    const of = (slot) => ({ name: machines.names[slot], of: (key) => machines.columns[key][slot] });
    const wanted = text.toLowerCase();
    const found = Array.from(machines.order, of);
    return found.filter((row) => row.name.includes(wanted) && stands(row.of("state"), state));
  }, [store.version, text, state]);
  return html`<${Page} title="Machines" live=${store}>
    <${Filter} value=${text} onInput=${setText} label="Filter by name">
      <${Choice} label="State" value=${state} options=${STATES} onPick=${setState} />
      <span class="found" role="status">${plural(rows.length, "machine")}</span>
    <//>
    <${Problem} error=${store.error} />
    ${store.sums
      ? html`<${Table} label="Machines" columns=${COLUMNS} rows=${rows} sort=${sort} onSort=${setSort}
          keyOf=${(row) => row.name} hrefOf=${(row) => to("machines", row.name)} empty="No machine is like that." />`
      : !store.error && html`<${Wait} />`}
  <//>`;
}
