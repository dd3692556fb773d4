//! Spacing between two pieces of one line, and trailing commas.

use super::regions::IndentRegions;
use rsjsonnet_lang::token::STokenKind as S;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PieceKind {
    Comment,
    /// A string literal.
    Text,
    /// A name, a number, or a keyword that stands for a value.
    Operand,
    Keyword,
    Operator,
    /// Brackets, commas, colons.
    Punctuation,
}

/// A token or a comment.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub text: String,
    pub kind: PieceKind,
    pub start: usize,
    /// The number of line breaks before it.
    pub line_breaks: usize,
    /// The index of the enclosing bracket.
    pub outer: Option<usize>,
    /// For a closing bracket: the index of its opening one.
    pub opener: Option<usize>,
    /// For an opening bracket: the index of its closing one.
    pub closer: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrailingComma {
    Comma,
    Nothing,
}

impl Piece {
    pub(super) fn new(
        text: &str,
        kind: PieceKind,
        start: usize,
        line_breaks: usize,
        outer: Option<usize>,
    ) -> Piece {
        Piece { text: text.into(), kind, start, line_breaks, outer, opener: None, closer: None }
    }

    pub(super) fn is_opener(&self) -> bool {
        self.kind == PieceKind::Punctuation && matches!(self.text.as_str(), "(" | "[" | "{")
    }

    pub(super) fn is_closer(&self) -> bool {
        self.kind == PieceKind::Punctuation && matches!(self.text.as_str(), ")" | "]" | "}")
    }

    fn is_mark(&self, text: &str) -> bool {
        self.kind == PieceKind::Punctuation && self.text == text
    }

    fn is_colon(&self) -> bool {
        self.kind == PieceKind::Punctuation && self.text.ends_with(':')
    }

    /// Whether a value may end with it.
    fn ends_value(&self) -> bool {
        matches!(self.kind, PieceKind::Text | PieceKind::Operand) || self.is_closer()
    }

    /// The normalized text: string literals in single quotes where that needs no escapes.
    pub(super) fn normalized_text(&self) -> String {
        let inner = self.text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        match inner {
            Some(inner) if self.kind == PieceKind::Text && !inner.contains(['\'', '\\', '"']) => {
                format!("'{inner}'")
            }
            _ => self.text.clone(),
        }
    }

    /// The text without its quotes, so that the choice of quotes does not matter.
    pub(super) fn unquoted_text(&self) -> &str {
        let text = self.text.as_str();
        let plain = |quote: char| text.strip_prefix(quote).and_then(|t| t.strip_suffix(quote));
        match plain('"').or_else(|| plain('\'')) {
            Some(inner) if self.kind == PieceKind::Text && !inner.contains(['\'', '\\', '"']) => {
                inner
            }
            _ => text,
        }
    }
}

pub(super) fn kind_of(kind: S) -> PieceKind {
    match kind {
        S::False | S::Null | S::Self_ | S::Super | S::True | S::Dollar => PieceKind::Operand,
        S::Assert
        | S::Else
        | S::Error
        | S::For
        | S::Function
        | S::If
        | S::Import
        | S::Importstr
        | S::Importbin
        | S::In
        | S::Local
        | S::Tailstrict
        | S::Then => PieceKind::Keyword,
        S::LeftParen
        | S::RightParen
        | S::LeftBracket
        | S::RightBracket
        | S::LeftBrace
        | S::RightBrace
        | S::Comma
        | S::Semicolon
        | S::Dot
        | S::Colon
        | S::ColonColon
        | S::ColonColonColon
        | S::PlusColon
        | S::PlusColonColon
        | S::PlusColonColonColon => PieceKind::Punctuation,
        _ => PieceKind::Operator,
    }
}

/// The last piece before `at` that is not a comment.
fn previous_token(pieces: &[Piece], at: usize) -> Option<usize> {
    (0..at).rev().find(|at| pieces[*at].kind != PieceKind::Comment)
}

/// Whether an operator has no left operand.
fn is_unary(pieces: &[Piece], at: usize) -> bool {
    let signs = ["-", "+", "!", "~"];
    let piece = &pieces[at];
    let alone = previous_token(pieces, at).is_none_or(|before| !pieces[before].ends_value());
    piece.kind == PieceKind::Operator && signs.contains(&piece.text.as_str()) && alone
}

/// The space between the previous piece and this one, on the same line.
pub(super) fn space_before(
    pieces: &[Piece],
    at: usize,
    regions: &IndentRegions,
) -> Option<&'static str> {
    let (left, right) = (&pieces[at.checked_sub(1)?], &pieces[at]);
    if right.kind == PieceKind::Comment {
        return Some(if right.text.starts_with("/*") { " " } else { "  " });
    }
    if left.kind == PieceKind::Comment {
        return Some(" ");
    }
    let inside = |piece: &Piece, bracket: &str| {
        piece.outer.is_some_and(|outer| pieces[outer].is_mark(bracket))
    };
    let slices = |piece: &Piece| {
        piece.is_colon() && inside(piece, "[") && !regions.is_of_assertion(piece.start)
    };
    let is_argument = |piece: &Piece| piece.text == "=" && regions.is_of_argument(piece.start);
    let tight = left.is_mark("(")
        || left.is_mark("[")
        || left.is_mark(".")
        || right.is_mark(")")
        || right.is_mark("]")
        || right.is_mark(",")
        || right.is_mark(";")
        || right.is_mark(".")
        || (left.is_mark("{") && right.is_mark("}"))
        || (right.is_colon() && !regions.is_of_assertion(right.start))
        || slices(left)
        || is_argument(left)
        || is_argument(right)
        || is_unary(pieces, at - 1)
        || ((right.is_mark("(") || right.is_mark("[")) && left.ends_value())
        || (right.is_mark("(") && left.kind == PieceKind::Keyword && left.text == "function");
    if tight { None } else { Some(" ") }
}

/// Whether a comma is redundant because the closing bracket is on the same line.
pub(super) fn is_dropped_comma(pieces: &[Piece], at: usize) -> bool {
    let next = pieces.get(at + 1);
    pieces[at].is_mark(",") && next.is_some_and(|next| next.is_closer() && next.line_breaks == 0)
}

/// Whether a trailing comma is missing before a closing bracket on its own line.
pub(super) fn wants_comma(pieces: &[Piece], at: usize) -> TrailingComma {
    let is_last = |closer: &usize| previous_token(pieces, *closer) == Some(at);
    let rest = pieces.iter().enumerate().skip(at + 1);
    let closer = rest.take_while(|(_, p)| p.kind == PieceKind::Comment || p.is_closer());
    let closer = closer.map(|(at, _)| at).find(|at| pieces[*at].is_closer()).filter(is_last);
    let Some(closer) = closer else { return TrailingComma::Nothing };
    let Some(opener) = pieces[closer].opener else { return TrailingComma::Nothing };
    let own_line = pieces[closer].line_breaks > 0;
    let is_empty = opener == at;
    let has_comma = pieces[at].is_mark(",");
    if own_line && !is_empty && !has_comma && allows_trailing_comma(pieces, opener, closer) {
        TrailingComma::Comma
    } else {
        TrailingComma::Nothing
    }
}

/// Lists, objects, arguments and parameters may end with a comma; parentheses around a value may
/// not.
fn allows_trailing_comma(pieces: &[Piece], opener: usize, closer: usize) -> bool {
    let direct = |piece: &&Piece| piece.outer == Some(opener);
    let is_for = |piece: &Piece| piece.kind == PieceKind::Keyword && piece.text == "for";
    if pieces[opener..closer].iter().filter(direct).any(is_for) {
        return false;
    }
    let left = previous_token(pieces, opener).map(|at| &pieces[at]);
    let after_value = left.is_some_and(Piece::ends_value);
    let is_function = left.is_some_and(|left| left.text == "function");
    match pieces[opener].text.as_str() {
        "{" => true,
        "(" => after_value || is_function,
        // A computed field name is at the beginning of a member.
        _ => {
            let in_object = pieces[opener].outer.is_some_and(|outer| pieces[outer].text == "{");
            let first = left.is_some_and(|left| left.is_mark("{") || left.is_mark(","));
            !(after_value || in_object && first)
        }
    }
}
