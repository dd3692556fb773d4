//! One Rust file as a flat list of tokens that know their line, depth and whether they are tests.
//!
//! Tokens instead of text: a ban on `HashMap` must not fire on the comment that explains the ban.
//! Tokens instead of a syntax tree: macros such as `proptest!` hold functions that a tree does not
//! show, and every check here is a short pattern over neighbouring tokens.

use std::str::FromStr;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ident,
    Punct,
    Literal,
    Open,
    Close,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
    /// First and last line, counted from 1.
    pub line: usize,
    pub end_line: usize,
    /// Nesting of delimiters; an opening and its closing delimiter share the outer depth.
    pub depth: usize,
    /// Inside `#[cfg(test)]` or `#[test]`.
    pub test: bool,
    /// For punctuation: the next token is glued to it, as in `::` or `->`.
    joint: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

pub struct RustFile {
    pub tokens: Vec<Token>,
    pub lines: Vec<String>,
    test_lines: Vec<bool>,
}

impl RustFile {
    pub fn lex(text: &str) -> Result<RustFile, String> {
        let stream = TokenStream::from_str(text).map_err(|error| {
            format!("not valid Rust tokens at line {}: {error}", error.span().start().line)
        })?;
        let mut tokens = Vec::new();
        flatten(stream, 0, &mut tokens);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut file = RustFile { tokens, test_lines: vec![false; lines.len() + 2], lines };
        file.mark_tests();
        Ok(file)
    }

    pub fn is_test_line(&self, line: usize) -> bool {
        self.test_lines.get(line).copied().unwrap_or(false)
    }

    /// The text of the token at `index`, empty outside the file: patterns need no bounds checks.
    pub fn text_at(&self, index: usize) -> &str {
        self.tokens.get(index).map_or("", |token| token.text.as_str())
    }

    /// Whether `::` starts at `index`.
    pub fn path_separator(&self, index: usize) -> bool {
        self.text_at(index) == ":" && self.tokens[index].joint && self.text_at(index + 1) == ":"
    }

    /// The index of the delimiter that closes the one at `open`.
    pub fn close_of(&self, open: usize) -> usize {
        let depth = self.tokens[open].depth;
        (open + 1..self.tokens.len())
            .find(|&i| self.tokens[i].kind == Kind::Close && self.tokens[i].depth == depth)
            .unwrap_or(self.tokens.len() - 1)
    }

    /// Every function with a body, those inside macros included.
    pub fn functions(&self) -> Vec<Function> {
        let mut functions = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let named = self.tokens.get(index + 1).is_some_and(|next| next.kind == Kind::Ident);
            if token.text != "fn" || token.kind != Kind::Ident || !named {
                continue;
            }
            let after = (index + 2..self.tokens.len()).find(|&i| {
                let t = &self.tokens[i];
                t.depth < token.depth
                    || (t.depth == token.depth && matches!(self.text_at(i), "{" | ";"))
            });
            if let Some(open) = after.filter(|&i| self.text_at(i) == "{") {
                let end = self.tokens[self.close_of(open)].line;
                functions.push(Function {
                    name: self.text_at(index + 1).to_owned(),
                    line: token.line,
                    lines: end - token.line + 1,
                });
            }
        }
        functions
    }

    /// Whether the file declares an item of this name (`fn`, type, trait, module or constant).
    pub fn declares(&self, name: &str) -> bool {
        const KEYWORDS: &[&str] = &["fn", "struct", "enum", "trait", "mod", "type", "const"];
        (1..self.tokens.len())
            .any(|i| self.text_at(i) == name && KEYWORDS.contains(&self.text_at(i - 1)))
    }

    /// The attributes right before the item whose first keyword is at `index`, as joined text.
    pub fn attributes_before(&self, index: usize) -> Vec<String> {
        let mut attributes = Vec::new();
        let mut end = index;
        while end > 0 {
            let previous = end - 1;
            let open = match self.text_at(previous) {
                "pub" => {
                    end = previous;
                    continue;
                }
                ")" | "]" => self.open_of(previous),
                _ => break,
            };
            if self.text_at(previous) == "]" && open > 0 && self.text_at(open - 1) == "#" {
                attributes.push(self.joined_text(open + 1, previous));
                end = open - 1;
            } else if open > 0 && self.text_at(open - 1) == "pub" {
                end = open - 1;
            } else {
                break;
            }
        }
        attributes
    }

    fn open_of(&self, close: usize) -> usize {
        let depth = self.tokens[close].depth;
        (0..close)
            .rev()
            .find(|&i| self.tokens[i].kind == Kind::Open && self.tokens[i].depth == depth)
            .unwrap_or(0)
    }

    fn joined_text(&self, from: usize, to: usize) -> String {
        self.tokens[from..to].iter().map(|token| token.text.as_str()).collect()
    }

    fn mark_tests(&mut self) {
        let mut index = 0;
        while index < self.tokens.len() {
            let inner = usize::from(self.text_at(index + 1) == "!");
            let open = index + 1 + inner;
            if self.text_at(index) != "#" || self.text_at(open) != "[" {
                index += 1;
                continue;
            }
            let close = self.close_of(open);
            if !is_test_attribute(&self.joined_text(open + 1, close)) {
                index = close + 1;
                continue;
            }
            if inner == 1 && self.tokens[index].depth == 0 {
                self.tokens.iter_mut().for_each(|token| token.test = true);
                self.test_lines.fill(true);
                return;
            }
            let end = self.end_of_item(close + 1);
            self.mark_range(index, end);
            index = end + 1;
        }
    }

    fn mark_range(&mut self, from: usize, to: usize) {
        for token in &mut self.tokens[from..=to] {
            token.test = true;
        }
        for line in self.tokens[from].line..=self.tokens[to].end_line {
            self.test_lines[line] = true;
        }
    }

    /// The last token of the item, field, arm or statement that starts at `start`.
    fn end_of_item(&self, start: usize) -> usize {
        let last = self.tokens.len() - 1;
        let Some(depth) = self.tokens.get(start).map(|token| token.depth) else {
            return last;
        };
        let (mut index, mut angles, mut in_where, mut value) = (start, 0_i32, false, false);
        while index <= last {
            let token = &self.tokens[index];
            if token.depth < depth {
                return index - 1;
            }
            match token.text.as_str() {
                "#" if self.text_at(index + 1) == "[" => index = self.close_of(index + 1),
                "use" | "static" | "const" | "let" | "type" => value = true,
                "fn" => value = false,
                "where" => in_where = true,
                "<" => angles += 1,
                ">" if !self.is_arrow(index) => angles -= 1,
                ";" => return index,
                "," if angles <= 0 && !in_where => return index,
                "{" if value => index = self.close_of(index),
                "{" => return self.close_of(index),
                "(" | "[" => index = self.close_of(index),
                _ => {}
            }
            index += 1;
        }
        last
    }

    fn is_arrow(&self, index: usize) -> bool {
        index > 0 && matches!(self.text_at(index - 1), "-" | "=") && self.tokens[index - 1].joint
    }
}

/// `cfg(any(test, …))` is not test code: it is also built without tests.
fn is_test_attribute(text: &str) -> bool {
    text == "cfg(test)"
        || text.starts_with("cfg(all(test,")
        || text == "test"
        || text.ends_with("::test")
}

fn flatten(stream: TokenStream, depth: usize, into: &mut Vec<Token>) {
    let token = |kind, text: &str, span: proc_macro2::Span, joint| Token {
        kind,
        text: text.to_owned(),
        line: span.start().line,
        end_line: span.end().line,
        depth,
        test: false,
        joint,
    };
    for tree in stream {
        match tree {
            TokenTree::Ident(ident) => {
                into.push(token(Kind::Ident, &ident.to_string(), ident.span(), false));
            }
            TokenTree::Literal(literal) => {
                into.push(token(Kind::Literal, &literal.to_string(), literal.span(), false));
            }
            TokenTree::Punct(punct) => {
                let joint = punct.spacing() == Spacing::Joint;
                into.push(token(Kind::Punct, &punct.as_char().to_string(), punct.span(), joint));
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::None => ("", ""),
                };
                into.push(token(Kind::Open, open, group.span_open(), false));
                flatten(group.stream(), depth + 1, into);
                into.push(token(Kind::Close, close, group.span_close(), false));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_idents(source: &str) -> Vec<String> {
        let file = RustFile::lex(source).expect("lexes");
        let marked = file.tokens.iter().filter(|t| t.test && t.text.starts_with("in_"));
        marked.map(|t| t.text.clone()).collect()
    }

    #[test]
    fn test_code_ends_with_its_item() {
        for (source, expected) in [
            ("#[cfg(test)] mod in_a { fn in_b() {} } fn out() {}", vec!["in_a", "in_b"]),
            (
                "#[test] #[allow(x)] fn in_a<T, U>() -> u8 where T: X, U: Y { in_b } fn out() {}",
                vec!["in_a", "in_b"],
            ),
            ("#[cfg(test)] use in_a::{in_b, in_c}; use out;", vec!["in_a", "in_b", "in_c"]),
            ("struct S { #[cfg(test)] in_a: Map<A, in_b>, out: u8 }", vec!["in_a", "in_b"]),
            ("#[cfg(all(test, unix))] const fn in_a() {} fn in_not() {}", vec!["in_a"]),
            ("#[cfg(any(test, fuzzing))] fn in_not() {}", vec![]),
            ("#[cfg(not(test))] fn in_not() {}", vec![]),
            ("mod out { #[cfg(test)] mod in_a; } fn in_not() {}", vec!["in_a"]),
        ] {
            assert_eq!(test_idents(source), expected, "{source}");
        }
    }

    #[test]
    fn an_inner_attribute_makes_the_whole_file_test_code() {
        let file = RustFile::lex("//! Doc.\n#![cfg(test)]\nfn a() {}\n").expect("lexes");
        assert!((1..=3).all(|line| file.is_test_line(line)));
    }

    #[test]
    fn functions_count_from_keyword_to_closing_brace() {
        let source = "trait T { fn none(&self); }\nfn a(f: fn() -> u8)\n{\n    f();\n}\n\
                      proptest! { fn b() {} }\n";
        let expected = [("a", 2, 4), ("b", 6, 1)].map(|(name, line, lines)| Function {
            name: name.to_owned(),
            line,
            lines,
        });
        assert_eq!(RustFile::lex(source).expect("lexes").functions(), expected);
    }

    #[test]
    fn attributes_are_found_behind_visibility() {
        let file = RustFile::lex("#[a] #[path = \"x.rs\"] pub(crate) mod m;").expect("lexes");
        let index = file.tokens.iter().position(|t| t.text == "mod").expect("has a mod");
        assert_eq!(file.attributes_before(index), ["path=\"x.rs\"", "a"]);
    }
}
