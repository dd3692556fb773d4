//! Runs the Jsonnet evaluator: the source and its imports in, JSON out. The import callbacks are
//! ours because the evaluator's own ones let `importstr` read any file.

use super::error_text::{self, SourceMap};
use super::import::{self, LIBRARY, LIBRARY_NAME};
use super::parameters::{self, Arguments, Mismatch};
use super::{EvaluationAnswer, EvaluationRequest};
use crate::diagnostic::{Diagnostic, Source};
use crate::locate;
use rsjsonnet_lang::arena::Arena;
use rsjsonnet_lang::interner::InternedStr;
use rsjsonnet_lang::program::{
    Callbacks, EvalError, EvalErrorKind, EvalStackTraceItem, ImportError, LoadError, NativeError,
    Program, Thunk, Value,
};
use rsjsonnet_lang::span::{SpanContextId, SpanId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Loads imported files, and remembers the error of the last failed import.
struct ImportLoader<'p, 'r> {
    request: &'r EvaluationRequest,
    sources: SourceMap,
    /// The folder in which a source's relative imports are resolved.
    folders: BTreeMap<SpanContextId, PathBuf>,
    loaded: BTreeMap<PathBuf, Thunk<'p>>,
    last_failure: Option<Diagnostic>,
}

pub(super) fn evaluate(request: &EvaluationRequest) -> EvaluationAnswer {
    let arena = Arena::new();
    let mut program = Program::new(&arena);
    program.set_max_stack(request.limits.depth);
    let mut files = ImportLoader {
        request,
        sources: SourceMap::default(),
        folders: BTreeMap::new(),
        loaded: BTreeMap::new(),
        last_failure: None,
    };
    let value = match files.load(&mut program, &request.source, &request.folders.own) {
        Ok(thunk) => files.value_of_file(&mut program, &thunk),
        Err(diagnostic) => Err(vec![*diagnostic]),
    };
    let text = value.and_then(|value| {
        program
            .manifest_json(&value, false)
            .map_err(|error| vec![*files.evaluation_error(&program, &error)])
    });
    match text {
        Ok(text) if text.len() as u64 > request.limits.output_bytes => {
            let mib = request.limits.output_bytes >> 20;
            let message = format!("the file stands for more than {mib} MiB of JSON");
            let help = format!("output limit: {mib} MiB");
            EvaluationAnswer::Failed(vec![
                Diagnostic::error(&request.source.name, message).with_help(help),
            ])
        }
        Ok(text) => EvaluationAnswer::Value(text),
        Err(diagnostics) => EvaluationAnswer::Failed(diagnostics),
    }
}

impl<'p> ImportLoader<'p, '_> {
    fn load(
        &mut self,
        program: &mut Program<'p>,
        source: &Source,
        folder: &Path,
    ) -> Result<Thunk<'p>, Box<Diagnostic>> {
        let bytes = source.text.as_bytes();
        let (context, _) = program.span_manager_mut().insert_source_context(bytes.len());
        self.sources.insert(context, source.clone());
        self.folders.insert(context, folder.to_owned());
        program.load_source(context, bytes, true, &source.name).map_err(|e: LoadError| {
            Box::new(error_text::load_error(program, &self.sources, source, &e))
        })
    }

    /// The value of the file: of a function, what it returns for its parameters.
    fn value_of_file(
        &mut self,
        program: &mut Program<'p>,
        file: &Thunk<'p>,
    ) -> Result<Value<'p>, Vec<Diagnostic>> {
        let (inputs, source) = (&self.request.inputs, &self.request.source);
        let value = program.eval_value(file, self);
        let value = value.map_err(|error| vec![*self.evaluation_error(program, &error)])?;
        if !value.is_function() {
            return if inputs.parameters.is_empty() {
                Ok(value)
            } else {
                Err(Mismatch::none_taken(inputs).diagnostics(&source.name, &[]))
            };
        }
        let mut thunks = |values: &BTreeMap<String, serde_json::Value>| {
            let thunk = |(name, value): (&String, &serde_json::Value)| {
                let text = Source { name: format!("--set {name}"), text: value.to_string() };
                let thunk = self.load(program, &text, &self.request.folders.own);
                thunk.map(|thunk| (name.clone(), thunk)).map_err(|diagnostic| vec![*diagnostic])
            };
            values.iter().map(thunk).collect::<Result<BTreeMap<_, _>, _>>()
        };
        let given = thunks(&inputs.parameters)?;
        let mut offered = thunks(&inputs.offered)?;
        offered.retain(|name, _| !given.contains_key(name));
        match parameters::call(program, file, Arguments { given, offered }, self) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(vec![*self.evaluation_error(program, &error)]),
            Err(mismatch) => {
                let request = self.request;
                let most_bytes = request.limits.file_bytes;
                let declared = locate::parameters(source, &request.folders, most_bytes);
                Err(mismatch.diagnostics(&source.name, &declared))
            }
        }
    }

    fn evaluation_error(&mut self, program: &Program<'p>, error: &EvalError) -> Box<Diagnostic> {
        let failed = self.last_failure.take();
        match (&error.kind, failed) {
            (EvalErrorKind::ImportFailed { .. }, Some(diagnostic))
                if diagnostic.place.is_some() =>
            {
                Box::new(diagnostic)
            }
            (_, failed) => {
                let mut diagnostic = error_text::evaluation_error(
                    program,
                    &self.sources,
                    &self.request.source.name,
                    error,
                );
                if let Some(failed) = failed {
                    (diagnostic.message, diagnostic.help) = (failed.message, failed.help);
                } else if matches!(error.kind, EvalErrorKind::StackOverflow) {
                    let max_depth = self.request.limits.depth;
                    diagnostic.help = Some(format!("depth limit: {max_depth} calls within calls"));
                }
                Box::new(diagnostic)
            }
        }
    }

    /// The path of the file that `from` imports.
    fn resolve_import(
        &self,
        program: &Program<'p>,
        from: SpanId,
        path: &str,
    ) -> Result<PathBuf, String> {
        let (context, _, _) = program.span_manager().get_span(from);
        let folder = self.folders.get(&context).unwrap_or(&self.request.folders.own);
        self.request.folders.resolve(folder, path)
    }

    fn read_import(
        &mut self,
        program: &Program<'p>,
        from: SpanId,
        path: &str,
    ) -> Result<Vec<u8>, ImportError> {
        let real = self.resolve_import(program, from, path).map_err(|why| self.fail(why))?;
        import::read(&real, self.request.limits.file_bytes).map_err(|why| self.fail(why))
    }

    fn fail(&mut self, message: String) -> ImportError {
        let help = self.request.folders.allowed();
        let diagnostic = Diagnostic::error(&self.request.source.name, message).with_help(help);
        self.last_failure = Some(diagnostic);
        ImportError
    }

    /// The path relative to the folder of the file, for error messages.
    fn name_of(&self, real: &Path) -> String {
        let inner = real.strip_prefix(&self.request.folders.own).unwrap_or(real);
        let beside = Path::new(&self.request.source.name).parent();
        beside.map_or(inner.to_owned(), |folder| folder.join(inner)).display().to_string()
    }

    fn load_import(
        &mut self,
        program: &mut Program<'p>,
        from: SpanId,
        path: &str,
    ) -> Result<Thunk<'p>, ImportError> {
        let is_library = path == LIBRARY_NAME;
        let real = if is_library {
            PathBuf::from(LIBRARY_NAME)
        } else {
            self.resolve_import(program, from, path).map_err(|why| self.fail(why))?
        };
        if let Some(thunk) = self.loaded.get(&real) {
            return Ok(thunk.clone());
        }
        let source = if is_library {
            Source { name: LIBRARY_NAME.into(), text: LIBRARY.into() }
        } else {
            let bytes = import::read(&real, self.request.limits.file_bytes);
            let bytes = bytes.map_err(|why| self.fail(why))?;
            let text = String::from_utf8(bytes)
                .map_err(|error| self.fail(format!("{path:?} is not UTF-8: {error}")))?;
            Source { name: self.name_of(&real), text }
        };
        let folder = real.parent().map_or(self.request.folders.own.clone(), Path::to_owned);
        let thunk = self.load(program, &source, &folder).map_err(|diagnostic| {
            self.last_failure = Some(*diagnostic);
            ImportError
        })?;
        self.loaded.insert(real, thunk.clone());
        Ok(thunk)
    }
}

impl<'p> Callbacks<'p> for ImportLoader<'p, '_> {
    fn import(
        &mut self,
        program: &mut Program<'p>,
        from: SpanId,
        path: &str,
    ) -> Result<Thunk<'p>, ImportError> {
        self.load_import(program, from, path)
    }

    fn import_str(
        &mut self,
        program: &mut Program<'p>,
        from: SpanId,
        path: &str,
    ) -> Result<String, ImportError> {
        let bytes = self.read_import(program, from, path)?;
        let text = String::from_utf8(bytes);
        text.map_err(|error| self.fail(format!("{path:?} is not UTF-8: {error}; see importbin")))
    }

    fn import_bin(
        &mut self,
        program: &mut Program<'p>,
        from: SpanId,
        path: &str,
    ) -> Result<Vec<u8>, ImportError> {
        self.read_import(program, from, path)
    }

    /// Traces are ignored: a file is also evaluated by programs, where nobody reads them.
    fn trace(&mut self, _: &mut Program<'p>, _: &str, _: &[EvalStackTraceItem]) {}

    fn native_call(
        &mut self,
        _: &mut Program<'p>,
        _: InternedStr<'p>,
        _: &[Value<'p>],
    ) -> Result<Value<'p>, NativeError> {
        // No native function is registered, so none is called.
        Err(NativeError)
    }
}
