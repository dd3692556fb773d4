//! Finds the source location of a field in a Jsonnet (or JSON) file. The evaluator does not report
//! it, so the file is parsed again and the path is followed through the syntax tree: into objects
//! and lists, over `+`, through `local`s, calls and imports, to the last expression that defines
//! it. Computed fields beyond that are not found; then the longest prefix of the path is used.
//!
//! Rejected: an evaluator of our own that tracks locations. It would be a second definition of the
//! language for the sake of error messages.

use crate::diagnostic::{Source, SourceLocation};
use crate::evaluate::import::{self, ImportFolders};
use cellwright_cell::field::{FieldPath, PathSegment};
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

/// The maximum number of steps through the syntax tree.
const MAX_DEPTH: usize = 200;

/// Which part of a field to locate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPart {
    Name,
    Value,
}

/// A parsed file with its imports.
struct ParsedFiles<'p, 'ast> {
    arena: &'p Arena,
    nodes: &'ast Arena,
    interner: StrInterner<'p>,
    folders: ImportFolders,
    max_bytes: u64,
    state: RefCell<Parsed<'p, 'ast>>,
}

struct Parsed<'p, 'ast> {
    spans: SpanManager,
    sources: BTreeMap<SpanContextId, Source>,
    imported: BTreeMap<PathBuf, Option<Expr<'p, 'ast>>>,
}

/// The names in scope, innermost first.
struct Scope<'p, 'ast, 's> {
    names: Vec<Binding<'p, 'ast, 's>>,
    outer: Option<&'s Scope<'p, 'ast, 's>>,
    /// The folder of the file that contains it.
    folder: &'s FilePath,
}

struct Binding<'p, 'ast, 's> {
    name: InternedStr<'p>,
    params: Option<&'ast [Param<'p, 'ast>]>,
    value: Expr<'p, 'ast>,
    /// The scope of the value's own names; absent: the scope of the binding.
    from: Option<&'s Scope<'p, 'ast, 's>>,
}

/// The location of each path, as exact as possible; `true` if it is the field itself.
pub(crate) fn locate(
    source: &Source,
    folders: &ImportFolders,
    most_bytes: u64,
    wanted: &[(FieldPath, FieldPart)],
) -> Vec<Option<(SourceLocation, bool)>> {
    let (arena, nodes) = (Arena::new(), Arena::new());
    let files = ParsedFiles::new(&arena, &nodes, folders, most_bytes);
    let Some(top) = files.parse(source) else { return vec![None; wanted.len()] };
    let scope = Scope { names: Vec::new(), outer: None, folder: &folders.own };
    let locate_one = |(path, part): &(FieldPath, FieldPart)| {
        let steps = &path.0;
        (0..=steps.len()).rev().find_map(|length| {
            let exact = length == steps.len();
            let part = if exact { *part } else { FieldPart::Name };
            let span = files.find(&top, &steps[..length], part, &scope, 0)?;
            Some((files.location(span)?, exact))
        })
    };
    wanted.iter().map(locate_one).collect()
}

/// A parameter of the function that a file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeclaredParameter {
    pub name: String,
    pub has_default: bool,
}

/// The parameters of the function that the file is, as far as its syntax shows them.
pub(crate) fn parameters(
    source: &Source,
    folders: &ImportFolders,
    most_bytes: u64,
) -> Vec<DeclaredParameter> {
    let (arena, nodes) = (Arena::new(), Arena::new());
    let files = ParsedFiles::new(&arena, &nodes, folders, most_bytes);
    let Some(top) = files.parse(source) else { return Vec::new() };
    let scope = Scope { names: Vec::new(), outer: None, folder: &folders.own };
    let declared = |param: &Param<'_, '_>| DeclaredParameter {
        name: param.name.value.value().to_owned(),
        has_default: param.default_value.is_some(),
    };
    files.function_params(&top, &scope, 0).unwrap_or_default().iter().map(declared).collect()
}

impl<'p, 'ast> ParsedFiles<'p, 'ast> {
    fn new(
        arena: &'p Arena,
        nodes: &'ast Arena,
        folders: &ImportFolders,
        max_bytes: u64,
    ) -> ParsedFiles<'p, 'ast> {
        let (spans, sources, imported) = (SpanManager::new(), BTreeMap::new(), BTreeMap::new());
        ParsedFiles {
            arena,
            nodes,
            interner: StrInterner::new(),
            folders: folders.clone(),
            max_bytes,
            state: RefCell::new(Parsed { spans, sources, imported }),
        }
    }

    /// The parameters of the function that `expr` stands for.
    fn function_params(
        &self,
        expr: &Expr<'p, 'ast>,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<&'ast [Param<'p, 'ast>]> {
        if depth > MAX_DEPTH {
            return None;
        }
        match expr.kind {
            ExprKind::Func(params, _) => Some(params),
            ExprKind::Paren(inner) | ExprKind::Assert(_, inner) => {
                self.function_params(inner, scope, depth + 1)
            }
            ExprKind::Local(binds, body) => {
                self.function_params(body, &bind_names(binds, scope), depth + 1)
            }
            ExprKind::Ident(ident) => {
                let (named, from) = lookup(scope, ident.value)?;
                named.params.or_else(|| self.function_params(&named.value, from, depth + 1))
            }
            ExprKind::Import(path) => {
                let ExprKind::String(wanted) = path.kind else { return None };
                let (top, folder) = self.imported(scope.folder, wanted)?;
                let fresh = Scope { names: Vec::new(), outer: None, folder: &folder };
                self.function_params(&top, &fresh, depth + 1)
            }
            _ => None,
        }
    }

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

    fn location(&self, span: SpanId) -> Option<SourceLocation> {
        let state = self.state.borrow();
        let (context, start, end) = state.spans.get_span(span);
        state.sources.get(&context).map(|source| source.location(start, end))
    }

    fn imported(&self, folder: &FilePath, wanted: &str) -> Option<(Expr<'p, 'ast>, PathBuf)> {
        if wanted == import::LIBRARY_NAME {
            return None;
        }
        let real = self.folders.resolve(folder, wanted).ok()?;
        let known = self.state.borrow().imported.get(&real).copied();
        let parsed = known.unwrap_or_else(|| {
            let bytes = import::read(&real, self.max_bytes).ok()?;
            let name = real.strip_prefix(&self.folders.own).unwrap_or(&real).display().to_string();
            self.parse(&Source { name, text: String::from_utf8(bytes).ok()? })
        });
        self.state.borrow_mut().imported.insert(real.clone(), parsed);
        Some((parsed?, real.parent()?.to_owned()))
    }

    /// The location of the expression that defines the field at `steps` in the value of `expr`.
    fn find(
        &self,
        expr: &Expr<'p, 'ast>,
        steps: &[PathSegment],
        part: FieldPart,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        if depth > MAX_DEPTH {
            return None;
        }
        let Some((first, rest)) = steps.split_first() else { return Some(expr.span) };
        let recurse = |expr: &Expr<'p, 'ast>| self.find(expr, steps, part, scope, depth + 1);
        match expr.kind {
            ExprKind::Object(inside) => self.in_object(inside, first, rest, part, scope, depth),
            ExprKind::Array(items) => match first {
                PathSegment::Index(at) => self.find(items.get(*at)?, rest, part, scope, depth + 1),
                PathSegment::Field(_) => None,
            },
            ExprKind::ArrayComp(item, _) => match first {
                PathSegment::Index(_) => self.find(item, rest, part, scope, depth + 1),
                PathSegment::Field(_) => None,
            },
            // A function that is left in the value is the file itself, called with parameters.
            ExprKind::Paren(inner) | ExprKind::Assert(_, inner) | ExprKind::Func(_, inner) => {
                recurse(inner)
            }
            ExprKind::If(_, yes, no) => recurse(yes).or_else(|| no.and_then(recurse)),
            ExprKind::Binary(left, BinaryOp::Add, right) => {
                self.in_sum(left, right, steps, part, scope, depth)
            }
            ExprKind::ObjExt(base, inside, _) => {
                let found_here = self.in_object(inside, first, rest, part, scope, depth);
                found_here.or_else(|| recurse(base))
            }
            ExprKind::Local(binds, body) => {
                let inner = bind_names(binds, scope);
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
                let longer = [&[PathSegment::Field(name.value.value().to_owned())], steps].concat();
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

    /// The right object overrides the left one; each list has its own items.
    fn in_sum(
        &self,
        left: &Expr<'p, 'ast>,
        right: &Expr<'p, 'ast>,
        steps: &[PathSegment],
        part: FieldPart,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        if let (Some(PathSegment::Index(at)), ExprKind::Array(items)) = (steps.first(), left.kind)
            && *at >= items.len()
        {
            let mut moved = steps.to_vec();
            moved[0] = PathSegment::Index(at - items.len());
            return self.find(right, &moved, part, scope, depth + 1);
        }
        let found_here = self.find(right, steps, part, scope, depth + 1);
        found_here.or_else(|| self.find(left, steps, part, scope, depth + 1))
    }

    fn in_object(
        &self,
        inside: ObjInside<'p, 'ast>,
        first: &PathSegment,
        rest: &[PathSegment],
        part: FieldPart,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        let PathSegment::Field(wanted) = first else { return None };
        let members = match inside {
            ObjInside::Members(members) => members,
            ObjInside::Comp { body, .. } => return self.find(body, rest, part, scope, depth + 1),
        };
        let locals = members.iter().filter_map(|member| match member {
            Member::Local(local) => Some(local.bind),
            _ => None,
        });
        let locals: Vec<Bind<'p, 'ast>> = locals.collect();
        let inner = bind_names(&locals, scope);
        members.iter().rev().find_map(|member| {
            let Member::Field(Field::Value(name, _, _, value)) = member else { return None };
            let span = name_span(name, wanted)?;
            match (rest, part) {
                ([], FieldPart::Name) => Some(span),
                _ => self.find(value, rest, part, &inner, depth + 1),
            }
        })
    }

    /// A function in the file is searched itself; for any other, the field most likely comes from
    /// an argument.
    fn in_call(
        &self,
        callee: &Expr<'p, 'ast>,
        args: &[Arg<'p, 'ast>],
        steps: &[PathSegment],
        part: FieldPart,
        scope: &Scope<'p, 'ast, '_>,
        depth: usize,
    ) -> Option<SpanId> {
        if let ExprKind::Ident(ident) = callee.kind
            && let Some((function, from)) = lookup(scope, ident.value)
            && let Some(params) = function.params
        {
            let inner = Scope {
                names: bind_arguments(params, args, scope),
                outer: Some(from),
                folder: from.folder,
            };
            return self.find(&function.value, steps, part, &inner, depth + 1);
        }
        let wanted = |name: &str| matches!(steps.first(), Some(PathSegment::Field(f)) if f == name);
        args.iter().rev().find_map(|arg| match arg {
            Arg::Positional(value) => self.find(value, steps, part, scope, depth + 1),
            Arg::Named(name, value) if wanted(name.value.value()) => match (&steps[1..], part) {
                ([], FieldPart::Name) => Some(name.span),
                (rest, _) => self.find(value, rest, part, scope, depth + 1),
            },
            Arg::Named(_, value) => self.find(value, steps, part, scope, depth + 1),
        })
    }
}

/// The span of the field name, if it is `wanted`.
fn name_span(name: &FieldName<'_, '_>, wanted: &str) -> Option<SpanId> {
    match name {
        FieldName::Ident(ident) => (ident.value.value() == wanted).then_some(ident.span),
        FieldName::String(text, span) => (text.value() == wanted).then_some(*span),
        FieldName::Expr(Expr { kind: ExprKind::String(text), .. }, span) => {
            (*text == wanted).then_some(*span)
        }
        FieldName::Expr(..) => None,
    }
}

fn bind_names<'p, 'ast, 's>(
    binds: &[Bind<'p, 'ast>],
    outer: &'s Scope<'p, 'ast, 's>,
) -> Scope<'p, 'ast, 's> {
    let named = |bind: &Bind<'p, 'ast>| Binding {
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

/// Binds parameters to the arguments of a call.
fn bind_arguments<'p, 'ast, 's>(
    params: &[Param<'p, 'ast>],
    args: &[Arg<'p, 'ast>],
    caller: &'s Scope<'p, 'ast, 's>,
) -> Vec<Binding<'p, 'ast, 's>> {
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
        Some(Binding { name: param.name.value, params: None, value, from: Some(caller) })
    };
    params.iter().enumerate().filter_map(named).collect()
}

fn lookup<'p, 'ast, 's, 'r>(
    scope: &'r Scope<'p, 'ast, 's>,
    name: InternedStr<'p>,
) -> Option<(&'r Binding<'p, 'ast, 's>, &'r Scope<'p, 'ast, 's>)> {
    let mut at = scope;
    loop {
        if let Some(found) = at.names.iter().find(|named| named.name == name) {
            return Some((found, found.from.unwrap_or(at)));
        }
        at = at.outer?;
    }
}
