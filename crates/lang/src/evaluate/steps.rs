//! Steps of an evaluation, counted: calls of functions, fields that are computed, and turns of
//! `for`. Whatever a file does without end it does through one of these, and their number is the
//! same on every machine, however busy it is.
//!
//! The evaluator counts nothing itself, but it asks us for imports. So the source gets one import
//! more at each of these places, of a name that is ours, and what the user reads of errors is
//! translated back. Rejected: processor time alone, by which a file passes here and fails there.
//!
//! A single step can be long: values compared with each other, one function of the standard
//! library over a large list, or a list that has another one twice, which has another one twice,
//! and so on, when all of it is written out. For these there are the limits on memory and time.

use rsjsonnet_lang::arena::Arena;
use rsjsonnet_lang::ast::{
    Arg, Assert, Bind, CompSpecPart, Expr, ExprKind, Field, FieldName, Member, ObjInside, Param,
};
use rsjsonnet_lang::interner::StrInterner;
use rsjsonnet_lang::lexer::Lexer;
use rsjsonnet_lang::parser::Parser;
use rsjsonnet_lang::span::{SpanId, SpanManager};

/// What is imported at each step. A path from the root on is refused of anybody else.
pub(super) const STEP: &str = "/step";
const BEFORE_VALUE: &str = "assert import '/step'; ";
const AFTER_FOR: &str = " if import '/step'";
/// Bytes that are read in the time of a step.
const STEP_BYTES: usize = 1 << 10;

/// Steps that it takes to read a file once more.
pub(super) fn of_bytes(bytes: usize) -> u64 {
    (bytes / STEP_BYTES) as u64 + 1
}

/// What was added to a source, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Added(Vec<Addition>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Addition {
    /// After how many bytes of the source.
    at: usize,
    /// Where it begins in the counted one.
    first: usize,
    length: usize,
}

impl Added {
    /// From a stretch of the counted source to that of the source it was made from. Nothing for
    /// what was added.
    pub(super) fn written(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let (mut from, mut to) = (start, end);
        for Addition { at, first, length } in &self.0 {
            let after = first + length;
            if *first <= start && end <= after {
                return None;
            }
            let more = after - at;
            if after <= start {
                from = start - more;
            } else if *first <= start {
                from = *at;
            }
            if after <= end {
                to = end - more;
            } else if *first <= end {
                to = *at;
            }
        }
        Some((from, to))
    }

    /// Before which byte of the source a step stands that has `start` of the counted one. Asked
    /// at each step, so not one after the other.
    pub(super) fn beside(&self, start: usize) -> Option<usize> {
        let begun = self.0.partition_point(|addition| addition.first <= start);
        let last = self.0[..begun].last()?;
        (start < last.first + last.length).then_some(last.at)
    }
}

/// The source with a step wherever one is counted; as it is when it cannot be parsed, since then it
/// is not evaluated either.
pub(super) fn counted(text: &str) -> (String, Added) {
    let mut places = places(text).unwrap_or_default();
    places.sort_unstable();
    let mut out = String::with_capacity(text.len() + places.len() * BEFORE_VALUE.len());
    let (mut done, mut added) = (0, Vec::with_capacity(places.len()));
    for (at, what) in places {
        // What has no place of its own in the text cannot be counted there.
        let Some(before) = text.get(done..at) else { continue };
        out.push_str(before);
        added.push(Addition { at, first: out.len(), length: what.len() });
        out.push_str(what);
        done = at;
    }
    out.push_str(&text[done..]);
    (out, Added(added))
}

/// Where steps are, and how each is written.
fn places(text: &str) -> Option<Vec<(usize, &'static str)>> {
    let (arena, nodes) = (Arena::new(), Arena::new());
    let (interner, mut spans) = (StrInterner::new(), SpanManager::new());
    let (context, _) = spans.insert_source_context(text.len());
    let lexer = Lexer::new(&arena, &nodes, &interner, &mut spans, context, text.as_bytes());
    let tokens = lexer.lex_to_eof(false).ok()?;
    let parser = Parser::new(&arena, &nodes, &interner, &mut spans, tokens);
    let top = parser.parse_root_expr().ok()?;
    let mut walk = Walk { rest: vec![top], places: Vec::new() };
    while let Some(expr) = walk.rest.pop() {
        walk.expr(&expr);
    }
    let place = |(span, what): (SpanId, &'static str)| {
        let (_, start, end) = spans.get_span(span);
        (if what == AFTER_FOR { end } else { start }, what)
    };
    Some(walk.places.into_iter().map(place).collect())
}

/// Through the syntax, with a list of what is left instead of calls within calls: a file may be
/// nested more deeply than a stack takes.
struct Walk<'p, 'ast> {
    rest: Vec<Expr<'p, 'ast>>,
    places: Vec<(SpanId, &'static str)>,
}

impl<'p, 'ast> Walk<'p, 'ast> {
    fn later<'a>(&mut self, more: impl IntoIterator<Item = &'a Expr<'p, 'ast>>)
    where
        'p: 'a,
        'ast: 'a,
    {
        self.rest.extend(more);
    }

    fn expr(&mut self, expr: &Expr<'p, 'ast>) {
        use ExprKind as K;
        match expr.kind {
            K::Null | K::Bool(_) | K::SelfObj | K::Dollar | K::String(_) | K::TextBlock(_) => {}
            K::Number(_) | K::SuperField(..) | K::Ident(_) => {}
            K::Import(_) | K::ImportStr(_) | K::ImportBin(_) => {}
            K::Paren(inner) | K::Field(inner, _) | K::SuperIndex(_, inner) => self.later([inner]),
            K::Unary(_, inner) | K::Error(inner) | K::InSuper(inner, _) => self.later([inner]),
            K::Object(inside) => self.object(inside),
            K::ObjExt(base, inside, _) => {
                self.later([base]);
                self.object(inside);
            }
            K::Array(items) => self.later(items),
            K::ArrayComp(item, parts) => {
                self.later([item]);
                self.turns(parts);
            }
            K::Index(left, right) | K::Binary(left, _, right) => self.later([left, right]),
            K::Slice(of, from, to, by) => {
                self.later([of]);
                self.later([from, to, by].into_iter().flatten());
            }
            K::Call(callee, args, _) => {
                self.later([callee]);
                self.later(args.iter().map(|arg| match arg {
                    Arg::Positional(value) | Arg::Named(_, value) => value,
                }));
            }
            K::Local(binds, body) => {
                binds.iter().for_each(|bind| self.bind(bind));
                self.later([body]);
            }
            K::If(condition, yes, no) => {
                self.later([condition, yes]);
                self.later(no);
            }
            K::Func(params, body) => self.function(params, body),
            K::Assert(assert, inner) => {
                self.assert(assert);
                self.later([inner]);
            }
        }
    }

    /// A value that may be computed again and again.
    fn counted(&mut self, value: &Expr<'p, 'ast>) {
        self.places.push((value.span, BEFORE_VALUE));
        self.later([value]);
    }

    fn function(&mut self, params: &[Param<'p, 'ast>], body: &Expr<'p, 'ast>) {
        self.later(params.iter().filter_map(|param| param.default_value.as_ref()));
        self.counted(body);
    }

    fn bind(&mut self, bind: &Bind<'p, 'ast>) {
        match bind.params {
            Some((params, _)) => self.function(params, &bind.value),
            None => self.later([&bind.value]),
        }
    }

    fn assert(&mut self, assert: &Assert<'p, 'ast>) {
        self.later([&assert.cond]);
        self.later(&assert.msg);
    }

    fn turns(&mut self, parts: &[CompSpecPart<'p, 'ast>]) {
        for part in parts {
            match part {
                CompSpecPart::For(part) => {
                    self.places.push((part.inner.span, AFTER_FOR));
                    self.later([&part.inner]);
                }
                CompSpecPart::If(part) => self.later([&part.cond]),
            }
        }
    }

    fn object(&mut self, inside: ObjInside<'p, 'ast>) {
        match inside {
            ObjInside::Members(members) => members.iter().for_each(|member| self.member(member)),
            ObjInside::Comp { locals1, name, body, locals2, comp_spec, .. } => {
                locals1.iter().chain(locals2).for_each(|local| self.bind(&local.bind));
                self.later([name]);
                self.field(body);
                self.turns(comp_spec);
            }
        }
    }

    fn member(&mut self, member: &Member<'p, 'ast>) {
        match member {
            Member::Local(local) => self.bind(&local.bind),
            Member::Assert(assert) => self.assert(assert),
            Member::Field(field) => {
                if let FieldName::Expr(name, _) = field.name() {
                    self.later([name]);
                }
                match field {
                    Field::Value(_, _, _, value) => self.field(value),
                    Field::Func(_, params, _, _, body) => self.function(params, body),
                }
            }
        }
    }

    /// Of an object made anew the fields are computed anew. What is plainly there takes no step.
    fn field(&mut self, value: &Expr<'p, 'ast>) {
        use ExprKind as K;
        match value.kind {
            K::Null | K::Bool(_) | K::String(_) | K::TextBlock(_) | K::Number(_) => {}
            K::Func(..) => self.later([value]),
            _ => self.counted(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, want: &str) {
        let (got, added) = counted(text);
        assert_eq!(got.replace(BEFORE_VALUE, "◦").replace(AFTER_FOR, "•"), want);
        // Every letter that was written is found again.
        let mut rest = got
            .char_indices()
            .filter(|(at, letter)| added.written(*at, at + letter.len_utf8()).is_some());
        let same = text.chars().all(|letter| rest.next().is_some_and(|(_, got)| got == letter));
        assert!(same && rest.next().is_none(), "{added:?}");
    }

    #[test]
    fn calls_computed_fields_and_turns_are_steps() {
        check("local f(x) = x + 1; f(2)", "local f(x) = ◦x + 1; f(2)");
        check("local f = function(x, y=f(1)) x; f", "local f = function(x, y=f(1)) ◦x; f");
        check(
            "{ a: 1, b: 'x', c: x.y, d+: { e: z } }",
            "{ a: 1, b: 'x', c: ◦x.y, d+: ◦{ e: ◦z } }",
        );
        check("{ f(x): x, g:: function(x) x }", "{ f(x): ◦x, g:: function(x) ◦x }");
        check("[x for x in a for y in b if c]", "[x for x in a• for y in b• if c]");
        check("{ [k]: v for k in a }", "{ [k]: ◦v for k in a• }");
        check(
            "local o = { local a(x) = x, assert f(function() 1) }; o { b: $ }",
            "local o = { local a(x) = ◦x, assert f(function() ◦1) }; o { b: ◦$ }",
        );
        check("if a[b:c] then !(d) else error 'ü' + e", "if a[b:c] then !(d) else error 'ü' + e");
        check("{ a: }", "{ a: }");
    }

    #[test]
    fn stretches_are_those_of_the_file() {
        let text = "local f(x) = x + 1; f(2)";
        let (got, added) = counted(text);
        let at = got.find("x + 1").unwrap();
        let first = text.find("x + 1").unwrap();
        assert_eq!(added.written(at, at + 5), Some((first, first + 5)));
        assert_eq!(added.written(first, at + 5), Some((first, first + 5)), "with the step before");
        assert_eq!(added.written(first + 7, first + 15), None, "the step itself");
        assert_eq!((added.beside(first + 7), added.beside(first - 1)), (Some(first), None));
        assert_eq!(added.written(0, got.len()), Some((0, text.len())));
        assert_eq!(added.written(0, 5), Some((0, 5)));
    }
}
