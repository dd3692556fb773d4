//! Determines the indentation of each line. A region is a range of the file that belongs to a
//! construct begun on an earlier line: the content of brackets, the value of a field, the branches
//! of an `if`. A line is indented one level more than the line on which its innermost region began,
//! so that `f({` on one line indents the following lines once and not twice.

use super::spacing::Piece;
use rsjsonnet_lang::ast::{
    Arg, Assert, Bind, CompSpecPart, Expr, ExprKind, Field, FieldName, Member, ObjInside, Param,
};
use rsjsonnet_lang::span::{SpanId, SpanManager};
use std::cmp::Reverse;

/// The maximum depth of syntax that is examined; deeper code keeps the indentation of its
/// surroundings.
const MAX_DEPTH: usize = 500;

pub(super) struct IndentRegions {
    /// The offsets at which lines begin.
    lines: Vec<usize>,
    /// Start, end, and the start of the construct that the region belongs to.
    regions: Vec<(usize, usize, usize)>,
    /// Ranges in which a colon belongs to an assertion.
    assertions: Vec<(usize, usize)>,
    /// Ranges that contain `then` and `else`, and the offset of their `if`.
    branches: Vec<(usize, usize, usize)>,
    /// Ranges in which `=` is part of an argument or a default value.
    arguments: Vec<(usize, usize)>,
}

impl IndentRegions {
    pub(super) fn new(text: &str) -> IndentRegions {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let lines = std::iter::once(0).chain(breaks.map(|(at, _)| at + 1)).collect();
        IndentRegions {
            lines,
            regions: Vec::new(),
            assertions: Vec::new(),
            branches: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// The start of the construct that a line belongs to whose first piece is at `start`: the
    /// innermost one that began on an earlier line.
    pub(super) fn indent_owner(&self, start: usize) -> Option<usize> {
        let line = self.line(start);
        let around = self.regions.iter().filter(|(from, to, _)| (*from..*to).contains(&start));
        let begun = around.filter(|(_, _, owner)| self.line(*owner) < line);
        begun.max_by_key(|(from, to, _)| (*from, Reverse(*to))).map(|(_, _, owner)| *owner)
    }

    pub(super) fn is_of_assertion(&self, start: usize) -> bool {
        self.assertions.iter().any(|(from, to)| (*from..*to).contains(&start))
    }

    pub(super) fn is_of_argument(&self, start: usize) -> bool {
        self.arguments.iter().any(|(from, to)| (*from..*to).contains(&start))
    }

    /// The offset of the `if` that a `then` or `else` at `start` belongs to.
    pub(super) fn matching_if(&self, start: usize) -> Option<usize> {
        let mut around = self.branches.iter().filter(|(from, to, _)| (*from..*to).contains(&start));
        around.next().map(|(_, _, owner)| *owner)
    }

    fn line(&self, start: usize) -> usize {
        self.lines.partition_point(|first| *first <= start)
    }

    fn add(&mut self, from: usize, to: usize, owner: usize) {
        self.regions.push((from, to, owner));
    }

    pub(super) fn brackets(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if let Some(closer) = piece.closer {
                self.add(piece.start + 1, pieces[closer].start, piece.start);
            }
        }
    }

    /// Adds all regions inside `expr`.
    pub(super) fn expression(&mut self, expr: &Expr<'_, '_>, spans: &SpanManager, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        let (start, end) = span_range(spans, expr.span);
        let next_depth = depth + 1;
        match expr.kind {
            ExprKind::Paren(inner)
            | ExprKind::Unary(_, inner)
            | ExprKind::Import(inner)
            | ExprKind::ImportStr(inner)
            | ExprKind::ImportBin(inner)
            | ExprKind::InSuper(inner, _)
            | ExprKind::SuperIndex(_, inner) => self.expression(inner, spans, next_depth),
            ExprKind::Error(inner) => self.part_of(inner, start, spans, next_depth),
            ExprKind::Object(inside) => self.object(&inside, spans, next_depth),
            ExprKind::ObjExt(base, inside, _) => {
                self.expression(base, spans, next_depth);
                self.object(&inside, spans, next_depth);
            }
            ExprKind::Array(items) => {
                items.iter().for_each(|item| self.expression(item, spans, next_depth));
            }
            ExprKind::ArrayComp(item, parts) => {
                self.expression(item, spans, next_depth);
                self.comprehension(parts, spans, next_depth);
            }
            ExprKind::Field(base, _) => {
                self.add(span_range(spans, base.span).1, end, start);
                self.expression(base, spans, next_depth);
            }
            ExprKind::Index(base, at) => {
                self.expression(base, spans, next_depth);
                self.expression(at, spans, next_depth);
            }
            ExprKind::Slice(base, from, to, step) => {
                let parts = [Some(base), from, to, step];
                parts
                    .into_iter()
                    .flatten()
                    .for_each(|part| self.expression(part, spans, next_depth));
            }
            ExprKind::Call(callee, args, _) => self.call(callee, args, spans, next_depth),
            ExprKind::Local(binds, body) => {
                if let [_, .., last] = binds {
                    let from = span_range(spans, binds[1].name.span).0;
                    self.add(from, span_range(spans, last.value.span).1, start);
                }
                binds.iter().for_each(|bind| self.bind(bind, spans, next_depth));
                self.expression(body, spans, next_depth);
            }
            ExprKind::If(..) => self.conditional(expr, start, spans, next_depth),
            ExprKind::Binary(left, _, right) => {
                self.add(span_range(spans, left.span).1, end, start);
                self.expression(left, spans, next_depth);
                self.expression(right, spans, next_depth);
            }
            ExprKind::Func(params, body) => {
                params.iter().for_each(|param| self.param(param, spans, next_depth));
                self.part_of(body, start, spans, next_depth);
            }
            ExprKind::Assert(assert, body) => {
                self.assertion(assert, spans, next_depth);
                self.expression(body, spans, next_depth);
            }
            _ => {}
        }
    }

    /// Adds `if`, `then`, `else`; an `else if` belongs to the first `if`.
    fn conditional(
        &mut self,
        expr: &Expr<'_, '_>,
        owner: usize,
        spans: &SpanManager,
        depth: usize,
    ) {
        let ExprKind::If(condition, yes, no) = expr.kind else { return };
        self.branches.push((
            span_range(spans, condition.span).1,
            span_range(spans, yes.span).0,
            owner,
        ));
        self.part_of(condition, owner, spans, depth);
        self.part_of(yes, owner, spans, depth);
        let Some(no) = no else { return };
        self.branches.push((span_range(spans, yes.span).1, span_range(spans, no.span).0, owner));
        match no.kind {
            ExprKind::If(..) if depth <= MAX_DEPTH => self.conditional(no, owner, spans, depth + 1),
            _ => self.part_of(no, owner, spans, depth),
        }
    }

    /// Adds `expr` as part of a construct that began at `owner`.
    fn part_of(&mut self, expr: &Expr<'_, '_>, owner: usize, spans: &SpanManager, depth: usize) {
        let (from, to) = span_range(spans, expr.span);
        self.add(from, to, owner);
        self.expression(expr, spans, depth + 1);
    }

    fn bind(&mut self, bind: &Bind<'_, '_>, spans: &SpanManager, depth: usize) {
        let owner = span_range(spans, bind.name.span).0;
        let params = bind.params.map_or(&[][..], |(params, _)| params);
        params.iter().for_each(|param| self.param(param, spans, depth));
        self.part_of(&bind.value, owner, spans, depth);
    }

    fn param(&mut self, param: &Param<'_, '_>, spans: &SpanManager, depth: usize) {
        if let Some(value) = &param.default_value {
            let (from, to) =
                (span_range(spans, param.name.span).1, span_range(spans, value.span).0);
            self.arguments.push((from, to));
            self.expression(value, spans, depth + 1);
        }
    }

    fn call(
        &mut self,
        callee: &Expr<'_, '_>,
        args: &[Arg<'_, '_>],
        spans: &SpanManager,
        depth: usize,
    ) {
        self.expression(callee, spans, depth);
        for arg in args {
            let value = match arg {
                Arg::Positional(value) => value,
                Arg::Named(name, value) => {
                    let (from, to) =
                        (span_range(spans, name.span).1, span_range(spans, value.span).0);
                    self.arguments.push((from, to));
                    value
                }
            };
            self.expression(value, spans, depth);
        }
    }

    fn assertion(&mut self, assert: &Assert<'_, '_>, spans: &SpanManager, depth: usize) {
        let owner = span_range(spans, assert.span).0;
        self.part_of(&assert.cond, owner, spans, depth);
        if let Some(message) = &assert.msg {
            let (from, to) =
                (span_range(spans, assert.cond.span).1, span_range(spans, message.span).0);
            self.assertions.push((from, to));
            self.part_of(message, owner, spans, depth);
        }
    }

    fn comprehension(&mut self, parts: &[CompSpecPart<'_, '_>], spans: &SpanManager, depth: usize) {
        for part in parts {
            match part {
                CompSpecPart::For(each) => self.expression(&each.inner, spans, depth),
                CompSpecPart::If(only) => self.expression(&only.cond, spans, depth),
            }
        }
    }

    fn object(&mut self, inside: &ObjInside<'_, '_>, spans: &SpanManager, depth: usize) {
        match inside {
            ObjInside::Members(members) => {
                members.iter().for_each(|member| self.member(member, spans, depth));
            }
            ObjInside::Comp { locals1, name, body, locals2, comp_spec, .. } => {
                self.expression(name, spans, depth);
                self.part_of(body, span_range(spans, name.span).0, spans, depth);
                let locals = locals1.iter().chain(*locals2);
                locals.for_each(|local| self.bind(&local.bind, spans, depth));
                self.comprehension(comp_spec, spans, depth);
            }
        }
    }

    fn member(&mut self, member: &Member<'_, '_>, spans: &SpanManager, depth: usize) {
        let (name, value) = match member {
            Member::Local(local) => return self.bind(&local.bind, spans, depth),
            Member::Assert(assert) => return self.assertion(assert, spans, depth),
            Member::Field(Field::Value(name, _, _, value)) => (name, value),
            Member::Field(Field::Func(name, params, _, _, value)) => {
                params.iter().for_each(|param| self.param(param, spans, depth));
                (name, value)
            }
        };
        let span = match name {
            FieldName::Ident(ident) => ident.span,
            FieldName::String(_, span) => *span,
            FieldName::Expr(inner, span) => {
                self.expression(inner, spans, depth);
                *span
            }
        };
        self.part_of(value, span_range(spans, span).0, spans, depth);
    }
}

fn span_range(spans: &SpanManager, span: SpanId) -> (usize, usize) {
    let (_, start, end) = spans.get_span(span);
    (start, end)
}
