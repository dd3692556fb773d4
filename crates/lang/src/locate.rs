//! Which line of a Jsonnet (or JSON) file a field of its value comes from. The evaluator does not
//! say, so the file is parsed again and the path is followed through the syntax: into objects and
//! lists, over `+`, through `local`s, calls and imports, to the last place that has a say. What is
//! computed beyond that is not found, and then the longest part of the path that is.
//!
//! Rejected: an evaluator of our own that carries places along. It would be a second definition of
//! the language for the sake of error messages.

use crate::diagnostic::{Place, Source};
use crate::evaluate::import;
use cellwright_cell::field::{FieldPath, Step};
use rsjsonnet_lang::arena::Arena;
use rsjsonnet_lang::ast::{
    Arg, BinaryOp, Bind, Expr, ExprKind, Field, FieldName, Member, ObjInside, Param,
};
use rsjsonnet_lang::interner::{InternedStr, StrInterner};
use rsjsonnet_lang::lexer::Lexer;
use rsjsonnet_lang::parser::Parser;
use rsjsonnet_lang::span::{SpanContextId, SpanId, SpanManager};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};

/// Steps through the syntax before it is given up.
const MOST_DEPTH: usize = 200;

/// What of a field is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Name,
    Value,
}

/// A parsed file and those it imports.
struct Files<'p, 'ast> {
    arena: &'p Arena,
    nodes: &'ast Arena,
    interner: StrInterner<'p>,
    root: PathBuf,
    most_bytes: u64,
    state: RefCell<Parsed<'p, 'ast>>,
}

struct Parsed<'p, 'ast> {
    spans: SpanManager,
    sources: BTreeMap<SpanContextId, Source>,
    imported: BTreeMap<PathBuf, Option<Expr<'p, 'ast>>>,
}

/// Names in reach, innermost first.
struct Scope<'p, 'ast, 's> {
    names: Vec<Named<'p, 'ast, 's>>,
    outer: Option<&'s Scope<'p, 'ast, 's>>,
    /// Of the file it is in.
    folder: &'s FilePath,
}

struct Named<'p, 'ast, 's> {
    name: InternedStr<'p>,
    params: Option<&'ast [Param<'p, 'ast>]>,
    value: Expr<'p, 'ast>,
    /// Where the value's own names are looked up; absent: where it is bound.
    from: Option<&'s Scope<'p, 'ast, 's>>,
}

/// The place of each path, as exact as it can be found; `true` when it is the very field.
pub(crate) fn locate(
    source: &Source,
    root: &FilePath,
    most_bytes: u64,
    wanted: &[(FieldPath, Part)],
) -> Vec<Option<(Place, bool)>> {
    let (arena, nodes) = (Arena::new(), Arena::new());
    let files = Files {
        arena: &arena,
        nodes: &nodes,
        interner: StrInterner::new(),
        root: root.to_owned(),
        most_bytes,
        state: RefCell::new(Parsed {
            spans: SpanManager::new(),
            sources: BTreeMap::new(),
            imported: BTreeMap::new(),
        }),
    };
    let Some(top) = files.parse(source) else { return vec![None; wanted.len()] };
    let scope = Scope { names: Vec::new(), outer: None, folder: root };
    let place = |(path, part): &(FieldPath, Part)| {
        let steps = &path.0;
        (0..=steps.len()).rev().find_map(|length| {
            let exact = length == steps.len();
            let part = if exact { *part } else { Part::Name };
            let span = files.find(&top, &steps[..length], part, &scope, 0)?;
            Some((files.place(span)?, exact))
        })
    };
    wanted.iter().map(place).collect()
}

impl<'p, 'ast> Files<'p, 'ast> {
    fn parse(&self, source: &Source) -> Option<Expr<'p, 'ast>> {
        let bytes = source.text.as_bytes();
        let mut state = self.state.borrow_mut();
        let (context, _) = state.spans.insert_source_context(bytes.len());
        state.sources.insert(context, source.clone());
        let (arena, nodes, interner) = (self.arena, self.nodes, &self.interner);
        let lexer = Lexer::new(arena, nodes, interner, &mut state.spans, context, bytes);
        let tokens = lexer.lex_to_eof(false).ok()?;
        Parser::new(arena, nodes, interner, &mut state.spans, tokens).parse_root_expr().ok()
    }

    fn place(&self, span: SpanId) -> Option<Place> {
        let state = self.state.borrow();
        let (context, start, end) = state.spans.get_span(span);
        state.sources.get(&context).map(|source| source.place(start, end))
    }

    fn imported(&self, folder: &FilePath, wanted: &str) -> Option<(Expr<'p, 'ast>, PathBuf)> {
        if wanted == import::LIBRARY_NAME {
            return None;
        }
        let real = import::resolve(&self.root, folder, wanted).ok()?;
        let known = self.state.borrow().imported.get(&real).copied();
        let parsed = known.unwrap_or_else(|| {
            let bytes = import::read(&real, self.most_bytes).ok()?;
            let name = real.strip_prefix(&self.root).unwrap_or(&real).display().to_string();
            self.parse(&Source { name, text: String::from_utf8(bytes).ok()? })
        });
        self.state.borrow_mut().imported.insert(real.clone(), parsed);
        Some((parsed?, real.parent()?.to_owned()))
    }

    /// Where what `expr` stands for says what is at `steps`.
    fn find(
        &self,
        expr: &Expr<'p, 'ast>,
        steps: &[Step],
        part: Part,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        if depth > MOST_DEPTH {
            return None;
        }
        let Some((first, rest)) = steps.split_first() else { return Some(expr.span) };
        let again = |expr: &Expr<'p, 'ast>| self.find(expr, steps, part, scope, depth + 1);
        match expr.kind {
            ExprKind::Object(inside) => self.in_object(inside, first, rest, part, scope, depth),
            ExprKind::Array(items) => match first {
                Step::Index(at) => self.find(items.get(*at)?, rest, part, scope, depth + 1),
                Step::Field(_) => None,
            },
            ExprKind::ArrayComp(item, _) => match first {
                Step::Index(_) => self.find(item, rest, part, scope, depth + 1),
                Step::Field(_) => None,
            },
            ExprKind::Paren(inner) | ExprKind::Assert(_, inner) => again(inner),
            ExprKind::If(_, yes, no) => again(yes).or_else(|| no.and_then(again)),
            ExprKind::Binary(left, BinaryOp::Add, right) => {
                self.in_sum(left, right, steps, part, scope, depth)
            }
            ExprKind::ObjExt(base, inside, _) => {
                let own = self.in_object(inside, first, rest, part, scope, depth);
                own.or_else(|| again(base))
            }
            ExprKind::Local(binds, body) => {
                let inner = bound(binds, scope);
                self.find(body, steps, part, &inner, depth + 1)
            }
            ExprKind::Ident(ident) => {
                let (named, from) = lookup(scope, ident.value)?;
                named.params.is_none().then_some(())?;
                self.find(&named.value, steps, part, from, depth + 1)
            }
            ExprKind::Call(callee, args, _) => {
                self.in_call(callee, args, steps, part, scope, depth)
            }
            ExprKind::Field(of, name) => {
                let longer = [&[Step::Field(name.value.value().to_owned())], steps].concat();
                self.find(of, &longer, part, scope, depth + 1)
            }
            ExprKind::Import(path) => {
                let ExprKind::String(wanted) = path.kind else { return None };
                let (top, folder) = self.imported(scope.folder, wanted)?;
                let fresh = Scope { names: Vec::new(), outer: None, folder: &folder };
                self.find(&top, steps, part, &fresh, depth + 1)
            }
            _ => None,
        }
    }

    /// Of objects the right one has the last say; of lists each has its own items.
    fn in_sum(
        &self,
        left: &Expr<'p, 'ast>,
        right: &Expr<'p, 'ast>,
        steps: &[Step],
        part: Part,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        if let (Some(Step::Index(at)), ExprKind::Array(items)) = (steps.first(), left.kind)
            && *at >= items.len()
        {
            let mut moved = steps.to_vec();
            moved[0] = Step::Index(at - items.len());
            return self.find(right, &moved, part, scope, depth + 1);
        }
        let own = self.find(right, steps, part, scope, depth + 1);
        own.or_else(|| self.find(left, steps, part, scope, depth + 1))
    }

    fn in_object(
        &self,
        inside: ObjInside<'p, 'ast>,
        first: &Step,
        rest: &[Step],
        part: Part,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        let Step::Field(wanted) = first else { return None };
        let members = match inside {
            ObjInside::Members(members) => members,
            ObjInside::Comp { body, .. } => return self.find(body, rest, part, scope, depth + 1),
        };
        let locals = members.iter().filter_map(|member| match member {
            Member::Local(local) => Some(local.bind),
            _ => None,
        });
        let locals: Vec<Bind<'p, 'ast>> = locals.collect();
        let inner = bound(&locals, scope);
        members.iter().rev().find_map(|member| {
            let Member::Field(Field::Value(name, _, _, value)) = member else { return None };
            let span = named(name, wanted)?;
            match (rest, part) {
                ([], Part::Name) => Some(span),
                _ => self.find(value, rest, part, &inner, depth + 1),
            }
        })
    }

    /// A function of the file says it itself; of any other, an argument most likely does.
    fn in_call(
        &self,
        callee: &Expr<'p, 'ast>,
        args: &[Arg<'p, 'ast>],
        steps: &[Step],
        part: Part,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        if let ExprKind::Ident(ident) = callee.kind
            && let Some((function, from)) = lookup(scope, ident.value)
            && let Some(params) = function.params
        {
            let inner =
                Scope { names: given(params, args, scope), outer: Some(from), folder: from.folder };
            return self.find(&function.value, steps, part, &inner, depth + 1);
        }
        let wanted = |name: &str| matches!(steps.first(), Some(Step::Field(f)) if f == name);
        args.iter().rev().find_map(|arg| match arg {
            Arg::Positional(value) => self.find(value, steps, part, scope, depth + 1),
            Arg::Named(name, value) if wanted(name.value.value()) => match (&steps[1..], part) {
                ([], Part::Name) => Some(name.span),
                (rest, _) => self.find(value, rest, part, scope, depth + 1),
            },
            Arg::Named(_, value) => self.find(value, steps, part, scope, depth + 1),
        })
    }
}

/// Where the name stands, if it is this one.
fn named(name: &FieldName<'_, '_>, wanted: &str) -> Option<SpanId> {
    match name {
        FieldName::Ident(ident) => (ident.value.value() == wanted).then_some(ident.span),
        FieldName::String(text, span) => (text.value() == wanted).then_some(*span),
        FieldName::Expr(Expr { kind: ExprKind::String(text), .. }, span) => {
            (*text == wanted).then_some(*span)
        }
        FieldName::Expr(..) => None,
    }
}

fn bound<'p, 'ast, 's>(
    binds: &[Bind<'p, 'ast>],
    outer: &'s Scope<'p, 'ast, 's>,
) -> Scope<'p, 'ast, 's> {
    let named = |bind: &Bind<'p, 'ast>| Named {
        name: bind.name.value,
        params: bind.params.map(|(params, _)| params).or(match bind.value.kind {
            ExprKind::Func(params, _) => Some(params),
            _ => None,
        }),
        value: match bind.value.kind {
            ExprKind::Func(_, body) => *body,
            _ => bind.value,
        },
        from: None,
    };
    Scope { names: binds.iter().map(named).collect(), outer: Some(outer), folder: outer.folder }
}

/// Parameters with the arguments of one call.
fn given<'p, 'ast, 's>(
    params: &[Param<'p, 'ast>],
    args: &[Arg<'p, 'ast>],
    caller: &'s Scope<'p, 'ast, 's>,
) -> Vec<Named<'p, 'ast, 's>> {
    let named = |(position, param): (usize, &Param<'p, 'ast>)| {
        let by_name = args.iter().find_map(|arg| match arg {
            Arg::Named(name, value) if name.value == param.name.value => Some(*value),
            _ => None,
        });
        let by_place = args.get(position).and_then(|arg| match arg {
            Arg::Positional(value) => Some(*value),
            Arg::Named(..) => None,
        });
        let value = by_name.or(by_place).or(param.default_value)?;
        Some(Named { name: param.name.value, params: None, value, from: Some(caller) })
    };
    params.iter().enumerate().filter_map(named).collect()
}

fn lookup<'p, 'ast, 's, 'r>(
    scope: &'r Scope<'p, 'ast, 's>,
    name: InternedStr<'p>,
) -> Option<(&'r Named<'p, 'ast, 's>, &'r Scope<'p, 'ast, 's>)> {
    let mut at = scope;
    loop {
        if let Some(found) = at.names.iter().find(|named| named.name == name) {
            return Some((found, found.from.unwrap_or(at)));
        }
        at = at.outer?;
    }
}
