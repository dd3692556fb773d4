//! Descriptions in JSON schemas, as users of the schemas see them. They come from the doc comments
//! of the types, which are written for Rust programmers: with links, `None` and numbers of
//! requirements. Every schema that leaves the program is simplified here, so that users of schemas
//! need not know any of that.
//!
//! Rejected: doc comments without any of it. Links in comments are checked by the compiler's own
//! tools, and numbers lead from the code to the list of what is covered.

use regex_lite::Regex;
use serde_json::Value;
use std::sync::OnceLock;

/// Simplifies every description in a schema, or in a document that contains schemas.
pub fn simplify_descriptions(document: &mut Value) {
    match document {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => *text = simplify(text),
                    inner => simplify_descriptions(inner),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(simplify_descriptions),
        _ => {}
    }
}

/// Patterns and their replacements, applied in this order.
const REPLACEMENTS: [(&str, &str); 4] = [
    // Numbers of requirements.
    (r"\s*\([BX]\d+(?:,\s*[BX]\d+)*\)", ""),
    // Links, replaced by the last segment of their path.
    (r"\[`(?:\w+::)*(\w+)`\]", "`$1`"),
    ("`None`(:| means)", "Left out$1"),
    ("`None`", "`null`"),
];

fn simplify(text: &str) -> String {
    static RULES: OnceLock<Vec<(Regex, &str)>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let rule = |(what, with)| (Regex::new(what).expect("tested below"), with);
        REPLACEMENTS.map(rule).into()
    });
    let replace =
        |text: String, (what, with): &(Regex, &str)| what.replace_all(&text, *with).into();
    rules.iter().fold(text.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn descriptions_are_mended_wherever_they_are_and_nothing_else_is() {
        let check = |description: &str, want: &str| {
            let of = |text: &str| json!({ "a": [{ "description": text }], "const": "(B6) `None`" });
            let mut document = of(description);
            simplify_descriptions(&mut document);
            assert_eq!(document, of(want));
        };
        check("After another job (B6).", "After another job.");
        check("One change (B5, X19), seen.", "One change, seen.");
        check("Up to a line's end\n(B6).", "Up to a line's end.");
        check("Bands (Base) stay (B).", "Bands (Base) stay (B).");
        check("A [`Resources`] of [`crate::named::UNBOUNDED`].", "A `Resources` of `UNBOUNDED`.");
        check("Most. `None`: no bound.", "Most. Left out: no bound.");
        check("`None` means as in the job.", "Left out means as in the job.");
        check("`None` when not said.", "`null` when not said.");
        // A field named `description` is no description.
        let mut field = json!({ "properties": { "description": { "type": "string" } } });
        let before = field.clone();
        simplify_descriptions(&mut field);
        assert_eq!(field, before);
    }
}
