// JSON with a field a line, in the very words it came in: what parses it and writes it anew rounds
// numbers beyond 2^53, of which the API has some.

const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** Throws where the text is no JSON. */
export function indented(text) {
  JSON.parse(text);
  let out = "";
  let depth = 0;
  let before = "";
  const line = () => `\n${"  ".repeat(depth)}`;
  for (const [token] of text.matchAll(TOKENS)) {
    const first = before === "{" || before === "[";
    if (token === "}" || token === "]") {
      depth -= 1;
      if (!first) out += line();
    } else if (first || before === ",") {
      out += line();
    }
    if (token === "{" || token === "[") depth += 1;
    out += token === ":" ? ": " : token;
    before = token;
  }
  return out;
}
