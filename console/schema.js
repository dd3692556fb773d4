// A JSON schema in words: of which type a field is, in which range, what it means, what is inside.

const TYPES = "#/components/schemas/";
/** Values beyond these are listed one below the other, not in a line. */
const MOST_IN_LINE = 6;

const RANGES = {
  uint8: [0, 255],
  uint16: [0, 65535],
  uint32: [0, 4294967295],
};

function integer(schema) {
  const [least, most] = RANGES[schema.format] || [];
  const from = schema.minimum ?? least;
  // What lies beyond was rounded when it was read, and is as good as no bound.
  const endless = schema.maximum > Number.MAX_SAFE_INTEGER;
  const until = endless ? undefined : (schema.maximum ?? most);
  if (from === undefined) return until === undefined ? "integer" : `integer, at most ${until}`;
  return until === undefined ? `integer, ${from} or more` : `integer, ${from} to ${until}`;
}

function string({ minLength = 0, maxLength, pattern }) {
  const length = maxLength === undefined ? [] : [`${minLength} to ${maxLength} characters`];
  return ["string", ...length, ...(pattern ? [`matching ${pattern}`] : [])].join(", ");
}

const listed = (values) => values.map((value) => JSON.stringify(value)).join(" or ");

export class Schemas {
  constructor(types) {
    this.types = types;
  }

  /** What a schema says with its references followed; what stands nearer to the field holds. */
  open(schema) {
    const { $ref, ...own } = schema;
    const type = $ref && $ref.slice(TYPES.length);
    const found = type ? { ...this.open(this.types[type]), name: type, ...own } : own;
    const forms = found.oneOf || found.anyOf;
    const real = forms && forms.filter((form) => form.type !== "null");
    if (forms && real.length === 1) {
      const { oneOf, anyOf, ...rest } = found;
      return { ...this.open(real[0]), ...rest, nullable: true };
    }
    if (!Array.isArray(found.type)) return found;
    const types = found.type.filter((one) => one !== "null");
    return { ...found, type: types.length === 1 ? types[0] : types.join(" or "), nullable: true };
  }

  /** `integer, 1 to 200000`, `list of string`, `JobSpec`. */
  words(schema) {
    const found = this.open(schema);
    const text = this.type(found);
    return found.nullable && !text.includes(" or null") ? `${text}, or null` : text;
  }

  type(found) {
    if (found.const !== undefined) return JSON.stringify(found.const);
    if (found.enum || found.oneOf || found.anyOf) {
      const values = this.values(found);
      if (values && values.length <= MOST_IN_LINE) return listed(values);
      return found.name || "one of these";
    }
    if (found.type === "array") return `list of ${found.items ? this.words(found.items) : "any JSON"}`;
    if (found.properties) return found.name || "object";
    const value = this.valueOf(found);
    if (value) return `object of names to ${this.words(value)}`;
    if (found.type === "integer") return integer(found);
    if (found.type === "string") return string(found);
    return found.type || "any JSON";
  }

  /** The schema of the values of an object whose names are free. */
  valueOf({ additionalProperties: other, patternProperties: byName }) {
    if (byName) return Object.values(byName)[0];
    return other && typeof other === "object" ? other : null;
  }

  /** All values there are, if they can be counted. */
  values(found) {
    if (found.enum) return found.enum;
    const forms = found.oneOf || found.anyOf;
    const each = forms.map((form) => form.enum || (form.const === undefined ? null : [form.const]));
    return each.includes(null) ? null : each.flat();
  }

  /** What is inside: `{ name, schema, required, about }` for each field or form, or nothing. */
  rows(schema) {
    const found = this.open(schema);
    if (found.oneOf || found.anyOf || found.enum) return this.forms(found);
    if (found.properties) {
      const required = new Set(found.required);
      return Object.entries(found.properties).map(([name, field]) => ({
        name,
        schema: field,
        required: required.has(name),
        about: this.about(field),
      }));
    }
    const inner = found.type === "array" ? found.items : this.valueOf(found);
    return inner ? this.rows(inner) : [];
  }

  about(schema) {
    const { description: text = "", default: start } = this.open(schema);
    const tells = start === undefined || start === null || /left out/i.test(text);
    return tells ? text : `${text} Left out: \`${JSON.stringify(start)}\`.`.trim();
  }

  forms(found) {
    const each = found.enum ? [found] : found.oneOf || found.anyOf;
    const rows = each.flatMap((form) => this.form(form, form === found ? "" : form.description || ""));
    // What the line of the type says already is not said again.
    const told = this.values(found) && rows.length <= MOST_IN_LINE && rows.every((row) => !row.about);
    return told ? [] : rows;
  }

  form(form, about) {
    if (form.const !== undefined) return [{ name: JSON.stringify(form.const), about }];
    if (form.enum) return form.enum.map((value) => ({ name: JSON.stringify(value), about }));
    const fields = Object.entries(form.properties || {});
    if (fields.length === 1) return [{ name: fields[0][0], schema: fields[0][1], about }];
    return [{ name: this.words(form), schema: fields.length ? form : null, about, untyped: true }];
  }
}
