//! The formatter of `cell fmt`: one style for Jsonnet. Line breaks and comments stay where they
//! are; indentation, spacing, quotes and trailing commas follow rules. JSON is printed anew; YAML
//! is left unchanged, because no syntax tree has its comments and styles.
//!
//! Works on tokens, with help from the syntax tree for what tokens do not show ([`regions`]). The
//! result is parsed and compared before it is returned: if a token were lost, the file would be
//! left unchanged. Rejected: printing the syntax tree, which has no comments.

mod regions;
mod spacing;

use crate::diagnostic::{Diagnostic, Source};
use crate::evaluate::error_text;
use crate::{Format, json};
use regions::IndentRegions;
use rsjsonnet_lang::arena::Arena;
use rsjsonnet_lang::interner::StrInterner;
use rsjsonnet_lang::lexer::Lexer;
use rsjsonnet_lang::parser::Parser;
use rsjsonnet_lang::span::SpanManager;
use rsjsonnet_lang::token::{STokenKind, Token, TokenKind};
use spacing::{Piece, PieceKind, TrailingComma};

/// Spaces per level of indentation.
const INDENT: usize = 2;

/// The formatted text; none for a language that is left unchanged.
///
/// # Errors
/// The syntax error in the source.
pub fn format_source(source: &Source, format: Format) -> Result<Option<String>, Box<Diagnostic>> {
    match format {
        Format::Yaml => Ok(None),
        Format::Json => {
            let value = json::parse(source)?;
            let text = serde_json::to_string_pretty(&value);
            let text =
                text.map_err(|e| Box::new(Diagnostic::error(&source.name, e.to_string())))?;
            Ok(Some(text + "\n"))
        }
        Format::Jsonnet => format_jsonnet(source).map(Some),
    }
}

fn format_jsonnet(source: &Source) -> Result<String, Box<Diagnostic>> {
    let (pieces, regions) = parse_source(source)?;
    let text = layout(&pieces, &regions);
    let reformatted = Source { name: source.name.clone(), text };
    let same = parse_source(&reformatted)
        .is_ok_and(|(after, _)| significant_tokens(&after) == significant_tokens(&pieces));
    if same {
        Ok(reformatted.text)
    } else {
        let message = "this file cannot be formatted without changing it; it is left as it is";
        Err(Box::new(Diagnostic::error(&source.name, message)))
    }
}

/// The tokens that determine the meaning: all but comments, spacing and trailing commas.
fn significant_tokens(pieces: &[Piece]) -> Vec<&str> {
    let tokens: Vec<&Piece> =
        pieces.iter().filter(|piece| piece.kind != PieceKind::Comment).collect();
    let ends = |at: usize| tokens.get(at + 1).is_some_and(|next| next.is_closer());
    let is_significant = |(at, piece): &(usize, &&Piece)| !(piece.text == "," && ends(*at));
    tokens
        .iter()
        .enumerate()
        .filter(is_significant)
        .map(|(_, piece)| piece.unquoted_text())
        .collect()
}

fn parse_source(source: &Source) -> Result<(Vec<Piece>, IndentRegions), Box<Diagnostic>> {
    let (arena, nodes, interner) = (Arena::new(), Arena::new(), StrInterner::new());
    let mut spans = SpanManager::new();
    let bytes = source.text.as_bytes();
    let (context, _) = spans.insert_source_context(bytes.len());
    let to_diagnostic = |spans: &SpanManager, (span, message, help): error_text::ErrorText| {
        let (_, start, end) = spans.get_span(span);
        let error = Diagnostic::error(&source.name, message)
            .with_location(Some(source.location(start, end)));
        Box::new(Diagnostic { help, ..error })
    };
    let lexer = Lexer::new(&arena, &nodes, &interner, &mut spans, context, bytes);
    let tokens = lexer.lex_to_eof(true);
    let tokens = tokens.map_err(|error| to_diagnostic(&spans, error_text::lex_error(&error)))?;
    let plain = tokens
        .iter()
        .filter(|token| !matches!(token.kind, TokenKind::Whitespace | TokenKind::Comment))
        .copied()
        .collect();
    let root = Parser::new(&arena, &nodes, &interner, &mut spans, plain).parse_root_expr();
    let root = root.map_err(|error| to_diagnostic(&spans, error_text::syntax_error(&error)))?;
    let pieces = pieces(&source.text, &spans, &tokens);
    let mut regions = IndentRegions::new(&source.text);
    regions.expression(&root, &spans, 0);
    regions.brackets(&pieces);
    Ok((pieces, regions))
}

fn pieces(text: &str, spans: &SpanManager, tokens: &[Token<'_, '_>]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut breaks = 0;
    let mut open: Vec<usize> = Vec::new();
    for token in tokens {
        let (_, start, end) = spans.get_span(token.span);
        let part = text.get(start..end).unwrap_or_default();
        let kind = match token.kind {
            TokenKind::Whitespace => {
                breaks += part.matches('\n').count();
                continue;
            }
            TokenKind::EndOfFile => continue,
            TokenKind::Comment => PieceKind::Comment,
            TokenKind::String(_) => PieceKind::Text,
            TokenKind::Ident(_) | TokenKind::Number(_) | TokenKind::TextBlock(_) => {
                PieceKind::Operand
            }
            TokenKind::Simple(kind) => spacing::kind_of(kind),
            TokenKind::OtherOp(_) => PieceKind::Operator,
        };
        // A line comment may include its line break.
        let trimmed = if kind == PieceKind::Comment { part.trim_end() } else { part };
        let at = pieces.len();
        let mut piece = Piece::new(trimmed, kind, start, breaks, open.last().copied());
        if matches!(
            token.kind,
            TokenKind::Simple(
                STokenKind::RightBrace | STokenKind::RightParen | STokenKind::RightBracket
            )
        ) {
            piece.opener = open.pop();
            if let Some(opener) = piece.opener {
                pieces[opener].closer = Some(at);
                piece.outer = pieces[opener].outer;
            }
        }
        if piece.is_opener() {
            open.push(at);
        }
        breaks = part[trimmed.len()..].matches('\n').count();
        pieces.push(piece);
    }
    pieces
}

/// Lays the pieces out as lines.
fn layout(pieces: &[Piece], regions: &IndentRegions) -> String {
    let mut out = String::new();
    let mut indents = vec![0; pieces.len()];
    let mut line_indent = 0;
    for (at, piece) in pieces.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| &pieces[at]);
        let starts = before.is_none_or(|_| piece.line_breaks > 0);
        if spacing::is_dropped_comma(pieces, at) {
            indents[at] = line_indent;
            continue;
        }
        if starts {
            let branch = (piece.kind == PieceKind::Keyword)
                .then(|| regions.matching_if(piece.start))
                .flatten();
            let begun = |start: usize| pieces.binary_search_by_key(&start, |p| p.start).ok();
            let level_with = piece.opener.or(branch.and_then(begun));
            let below = regions.indent_owner(piece.start).and_then(begun);
            line_indent = match (level_with, below) {
                (Some(begun), _) => indents[begun],
                (None, Some(owner)) => indents[owner] + INDENT,
                (None, None) => 0,
            };
            if let Some(before) = before {
                let blank = piece.line_breaks > 1 && !before.is_opener() && piece.opener.is_none();
                out.push_str(if blank { "\n\n" } else { "\n" });
            }
            out.push_str(&" ".repeat(line_indent));
        } else if let Some(gap) = spacing::space_before(pieces, at, regions) {
            out.push_str(gap);
        }
        indents[at] = line_indent;
        out.push_str(&piece.normalized_text());
        if spacing::wants_comma(pieces, at) == TrailingComma::Comma {
            out.push(',');
        }
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::import::ImportFolders;
    use crate::evaluate::{Evaluator, evaluate};
    use crate::{Inputs, Limits, LoadOptions};
    use proptest::prelude::*;
    use std::path::Path;

    fn format(text: &str) -> String {
        let source = Source { name: "f.jsonnet".into(), text: text.into() };
        format_jsonnet(&source)
            .unwrap_or_else(|diagnostic| panic!("{}\n{text}", diagnostic.render(false)))
    }

    fn check(text: &str, want: &str) {
        assert_eq!(format(text), want);
        assert_eq!(format(want), want, "not stable");
    }

    #[test]
    fn blanks_quotes_and_commas_follow_rules() {
        check("{a:1,'b' :\"x\" , c : [ 1,2 , ],}", "{ a: 1, 'b': 'x', c: [1, 2] }\n");
        check(
            "local  f( x,y = 2 )=x+y*-1 ; f(1 , y=3)",
            "local f(x, y=2) = x + y * -1; f(1, y=3)\n",
        );
        check("{}+{  }", "{} + {}\n");
        check("[ x*2 for x in [1 ,2] if x>1 ]", "[x * 2 for x in [1, 2] if x > 1]\n");
        check(
            "{ [ k ]+: a[1:2], f( x )::x, g:::$.h[\"y\"] }",
            "{ [k]+: a[1:2], f(x):: x, g::: $.h['y'] }\n",
        );
        check("if! a then - 1 else\"it's\"", "if !a then -1 else \"it's\"\n");
        check("x{y:1}.z  # why", "x { y: 1 }.z  # why\n");
        check("assert a:'b';import\"c\"", "assert a : 'b'; import 'c'\n");
    }

    #[test]
    fn lines_and_comments_stay_and_are_indented() {
        let text =
            "// top\nlocal a=\n1;\n{\n\n\n// one\nb:\n2, // two\n\n\n\nc:{\nd:[\n1\n]\n}\n\n}\n";
        let want = "\
// top
local a =
  1;
{
  // one
  b:
    2,  // two

  c: {
    d: [
      1,
    ],
  },
}
";
        check(text, want);
        check("f({\na:1})", "f({\n  a: 1 })\n");
        check("f({\na:1\n},{\nb:2\n})", "f({\n  a: 1,\n}, {\n  b: 2,\n})\n");
        check(
            "{a:if x then\n1\nelse if y then\n2\nelse\n3}",
            "{ a: if x then\n  1\nelse if y then\n  2\nelse\n  3 }\n",
        );
        check(
            "{\na: 'x' +\n'y' +\n'z',\nb: |||\n  text\n|||\n}",
            "{\n  a: 'x' +\n    'y' +\n    'z',\n  b: |||\n  text\n|||,\n}\n",
        );
    }

    #[test]
    fn the_library_and_the_examples_are_written_this_way() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let mut files = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cell.libsonnet")];
        for entry in std::fs::read_dir(folder).unwrap() {
            files.push(entry.unwrap().path());
        }
        files.retain(|path| Format::of(path) == Some(Format::Jsonnet));
        assert!(files.len() >= 6);
        for path in files {
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(format(&text), text, "{}", path.display());
        }
    }

    /// Random expressions of a few kinds, with spaces, line breaks and comments in odd places.
    fn expression() -> impl Strategy<Value = String> {
        let blank = prop_oneof![
            3 => Just(" ".to_owned()),
            1 => Just("\n".to_owned()),
            1 => Just("\n\n\n".to_owned()),
            1 => Just(" // note\n".to_owned()),
            1 => Just("/* note */ ".to_owned()),
        ];
        let leaf = prop_oneof![
            Just("1".to_owned()),
            Just("'a'".to_owned()),
            Just("\"it's\"".to_owned()),
            Just("null".to_owned()),
            Just("(-2)".to_owned()),
            Just("|||\n  block\n|||".to_owned()),
        ];
        leaf.prop_recursive(5, 40, 4, move |inner| {
            let gap = blank.clone();
            prop_oneof![
                (inner.clone(), gap.clone(), inner.clone(), gap.clone())
                    .prop_map(|(a, g, b, h)| format!("[{g}{a},{h}{b}{g}]")),
                (inner.clone(), gap.clone(), inner.clone(), gap.clone())
                    .prop_map(|(a, g, b, h)| format!("{{{g}x:{h}{a},{g}y::{b},{h}}}")),
                (inner.clone(), gap.clone(), inner.clone())
                    .prop_map(|(a, g, b)| format!("[{a}]{g}+{g}[{b}]")),
                (inner.clone(), gap.clone(), inner.clone())
                    .prop_map(|(a, g, b)| format!("local v={g}{a};{g}[v,{b}]")),
                (inner.clone(), gap.clone(), inner.clone())
                    .prop_map(|(a, g, b)| format!("(if{g}true then{g}{a}{g}else {b})")),
                (inner.clone(), gap.clone())
                    .prop_map(|(a, g)| format!("(function(p,{g}q=1)[p,q])({g}{a},{g}q=2)")),
                (inner, gap).prop_map(|(a, g)| format!("[{a}{g}for i in{g}[1,2]if i>1]")),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None,
                                            ..ProptestConfig::default() })]

        #[test]
        fn formatting_keeps_the_meaning_and_is_done_once(text in expression()) {
            let value = |text: &str| {
                let source = Source { name: "f.jsonnet".into(), text: text.into() };
                let folders = ImportFolders::new(Path::new("."), &[]).unwrap();
                let (evaluator, limits) = (Evaluator::InProcess, Limits::default());
                let inputs = Inputs::default();
                evaluate(&source, &folders, &LoadOptions { evaluator, limits, owner: None, inputs })
            };
            let once = format(&text);
            prop_assert_eq!(value(&text).ok(), value(&once).ok(), "{}", &once);
            prop_assert_eq!(format(&once), once);
        }
    }
}
