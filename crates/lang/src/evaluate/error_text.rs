//! Converts the evaluator's errors to diagnostics at the line of the user's file that caused them.
//! An error in the library is located at the call of the library, so that users need not read a
//! file that is not theirs.

use super::import::{LIBRARY, LIBRARY_NAME};
use crate::diagnostic::{Diagnostic, Source, SourceLocation, StackFrame};
use crate::schema_check::suggestion_text;
use rsjsonnet_lang::lexer::LexError;
use rsjsonnet_lang::parser::{ActualToken, ExpectedToken, ParseError};
use rsjsonnet_lang::program::{
    AnalyzeError, EvalError, EvalErrorKind, EvalErrorValueType, EvalStackTraceItem, LoadError,
    Program,
};
use rsjsonnet_lang::span::{SpanContextId, SpanId, SpanManager};
use rsjsonnet_lang::token::STokenKind;
use std::collections::BTreeMap;

/// Sources by the context id in spans.
#[derive(Default)]
pub(super) struct SourceMap(BTreeMap<SpanContextId, Source>);

impl SourceMap {
    pub(super) fn insert(&mut self, context: SpanContextId, source: Source) {
        self.0.insert(context, source);
    }

    /// The location of a span; none in the evaluator's own library.
    fn location(&self, spans: &SpanManager, span: SpanId) -> Option<SourceLocation> {
        let (context, start, end) = spans.get_span(span);
        Some(self.0.get(&context)?.location(start, end))
    }

    /// The location of a span in a user's file.
    fn own_location(&self, spans: &SpanManager, span: SpanId) -> Option<SourceLocation> {
        self.location(spans, span).filter(|place| place.file != LIBRARY_NAME)
    }
}

pub(super) fn load_error(
    program: &Program<'_>,
    sources: &SourceMap,
    source: &Source,
    error: &LoadError,
) -> Diagnostic {
    let (span, message, help) = match error {
        LoadError::Lex(error) => lex_error(error),
        LoadError::Parse(error) => syntax_error(error),
        LoadError::Analyze(error) => analyze_error(error),
    };
    let diagnostic = Diagnostic::error(&source.name, message);
    Diagnostic { help, ..diagnostic.with_location(sources.location(program.span_manager(), span)) }
}

/// The span, the message, and the allowed values.
pub(crate) type ErrorText = (SpanId, String, Option<String>);

/// Errors of the lexer alone; also for the formatter, which never evaluates.
pub(crate) fn lex_error(error: &LexError) -> ErrorText {
    use LexError as E;
    let (span, message) = match error {
        E::InvalidChar { span, chr } => (span, format!("{chr:?} means nothing in Jsonnet")),
        E::InvalidUtf8 { span, .. } => (span, "this is not UTF-8".into()),
        E::UnfinishedMultilineComment { span } => (span, "the comment has no end, `*/`".into()),
        E::LeadingZeroInNumber { span } => (span, "a number does not begin with 0".into()),
        E::MissingFracDigits { span } => (span, "digits are missing after the point".into()),
        E::MissingExpDigits { span } => (span, "digits are missing after the `e`".into()),
        E::MissingDigitAfterUnderscore { span } => (span, "a digit is missing after `_`".into()),
        E::ExpOverflow { span } => (span, "the number is too large".into()),
        E::InvalidEscapeInString { span, chr } => {
            (span, format!("`\\{chr}` is no escape; for a backslash write `\\\\`"))
        }
        E::IncompleteUnicodeEscape { span } => (span, "`\\u` takes four hex digits".into()),
        E::InvalidUtf16EscapeSequence { span, .. } => (span, "this is no character".into()),
        E::UnfinishedString { span } => (span, "the text has no closing quote".into()),
        E::MissingLineBreakAfterTextBlockStart { span } => {
            (span, "the text begins on the line after `|||`".into())
        }
        E::MissingWhitespaceTextBlockStart { span } => {
            (span, "the first line of a `|||` text must be indented".into())
        }
        E::InvalidTextBlockTermination { span } => {
            (span, "a `|||` text ends with `|||` on a line of its own, indented less".into())
        }
    };
    (*span, message, None)
}

pub(crate) fn syntax_error(error: &ParseError) -> ErrorText {
    let ParseError::Expected { span, expected, instead } = error;
    let found = match instead {
        ActualToken::EndOfFile => "the end of the file".into(),
        ActualToken::Simple(kind) => format!("`{}`", token_text(*kind)),
        ActualToken::OtherOp(text) => format!("`{text}`"),
        ActualToken::Ident(name) => format!("the name `{name}`"),
        ActualToken::Number => "a number".into(),
        ActualToken::String | ActualToken::TextBlock => "a text".into(),
    };
    let mut wanted: Vec<String> = expected
        .iter()
        .map(|token| match token {
            ExpectedToken::EndOfFile => "the end of the file".to_owned(),
            ExpectedToken::Simple(kind) => format!("`{}`", token_text(*kind)),
            ExpectedToken::Ident => "a name".to_owned(),
            ExpectedToken::Number => "a number".to_owned(),
            ExpectedToken::String | ExpectedToken::TextBlock => "a text".to_owned(),
            ExpectedToken::Expr => "a value".to_owned(),
            ExpectedToken::BinaryOp => "an operator".to_owned(),
        })
        .collect();
    wanted.dedup();
    (*span, format!("{found} cannot stand here"), Some(wanted.join(", ")))
}

fn analyze_error(error: &AnalyzeError) -> ErrorText {
    use AnalyzeError as E;
    let (span, message) = match error {
        E::UnknownVariable { span, name } => (span, format!("`{name}` is not defined")),
        E::SelfOutsideObject { self_span } => (self_span, "`self` is for objects alone".into()),
        E::SuperOutsideObject { super_span } => (super_span, "`super` is for objects alone".into()),
        E::DollarOutsideObject { dollar_span } => (dollar_span, "`$` is for objects alone".into()),
        E::RepeatedLocalName { repeated_span, name, .. } => {
            (repeated_span, format!("`{name}` is defined twice"))
        }
        E::RepeatedFieldName { repeated_span, name, .. } => {
            (repeated_span, format!("the field `{name}` is there twice"))
        }
        E::RepeatedParamName { repeated_span, name, .. } => {
            (repeated_span, format!("the parameter `{name}` is there twice"))
        }
        E::PositionalArgAfterNamed { arg_span } => {
            (arg_span, "arguments without a name come before those with one".into())
        }
        E::TextBlockAsImportPath { span } | E::ComputedImportPath { span } => {
            (span, "what is imported must be a plain text".into())
        }
    };
    let help = match error {
        E::UnknownVariable { name, .. } if name == "cell" => {
            Some("begin the file with: local cell = import 'cell.libsonnet';".to_owned())
        }
        _ => None,
    };
    (*span, message, help)
}

pub(super) fn evaluation_error(
    program: &Program<'_>,
    sources: &SourceMap,
    file: &str,
    error: &EvalError,
) -> Diagnostic {
    let spans = program.span_manager();
    let (span, message) = error_kind_text(&error.kind);
    let mut frames: Vec<(String, SourceLocation)> =
        error.stack_trace.iter().filter_map(|item| frame(sources, spans, item)).collect();
    // Innermost first, whatever the order in the evaluator.
    frames.reverse();
    let own_location = span.and_then(|span| sources.own_location(spans, span));
    let location = own_location.or_else(|| frames.first().map(|(_, place)| place.clone()));
    let same = |at: &SourceLocation| {
        location.as_ref().is_some_and(|p| (&p.file, p.line) == (&at.file, at.line))
    };
    let mut trace: Vec<StackFrame> = frames
        .into_iter()
        .filter(|(_, at)| !same(at))
        .map(|(text, at)| StackFrame { what: text, file: at.file, line: at.line })
        .collect();
    trace.dedup();
    let diagnostic =
        Diagnostic { trace, ..Diagnostic::error(file, message).with_location(location) };
    match &error.kind {
        EvalErrorKind::UnknownObjectField { field_name, .. } => {
            library_error(diagnostic, field_name)
        }
        _ => diagnostic,
    }
}

/// Adds the known fields of the library to the error: the evaluator does not name the fields of an
/// object, but the library's are known, and files call it `cell`.
fn library_error(diagnostic: Diagnostic, field: &str) -> Diagnostic {
    let called = format!("cell.{field}");
    if !diagnostic.place.as_ref().is_some_and(|place| place.text.contains(&called)) {
        return diagnostic;
    }
    let function = |line: &'static str| {
        let (name, _) =
            line.strip_prefix("  ")?.split_once('(').filter(|_| line.contains(")::"))?;
        name.chars().all(char::is_alphabetic).then_some(name)
    };
    let known: Vec<&str> = LIBRARY.lines().filter_map(function).collect();
    let message =
        format!("there is no `{field}` in {LIBRARY_NAME}{}", suggestion_text(field, known.clone()));
    Diagnostic { message, help: Some(known.join(", ")), ..diagnostic }
}

fn frame(
    sources: &SourceMap,
    spans: &SpanManager,
    item: &EvalStackTraceItem,
) -> Option<(String, SourceLocation)> {
    use EvalStackTraceItem as I;
    let (span, text) = match item {
        I::Expr { span } => (Some(*span), "in a value".to_owned()),
        I::Call { span, name } => {
            let name = name.as_ref().map_or("a function".to_owned(), |name| format!("`{name}`"));
            (*span, format!("called {name}"))
        }
        I::Variable { span, name } => (Some(*span), format!("in `{name}`")),
        I::ArrayItem { span, index } => (*span, format!("in item {index}")),
        I::ObjectField { span, name } => (*span, format!("in field `{name}`")),
        I::Import { span } => (Some(*span), "imported".to_owned()),
        _ => (None, String::new()),
    };
    Some((text, sources.own_location(spans, span?)?))
}

fn value_kind_text(value: EvalErrorValueType) -> &'static str {
    match value {
        EvalErrorValueType::Null => "null",
        EvalErrorValueType::Bool => "true or false",
        EvalErrorValueType::Number => "a number",
        EvalErrorValueType::String => "a text",
        EvalErrorValueType::Array => "a list",
        EvalErrorValueType::Object => "an object",
        EvalErrorValueType::Function => "a function",
    }
}

fn error_kind_text(kind: &EvalErrorKind) -> (Option<SpanId>, String) {
    use EvalErrorKind as E;
    match kind {
        E::ExplicitError { span, message } => (Some(*span), message.clone()),
        E::AssertFailed { span, message } => {
            (Some(*span), message.clone().unwrap_or_else(|| "the assertion does not hold".into()))
        }
        E::StackOverflow => (
            None,
            "calls are nested too deeply; does a function call itself \
                                    without end?"
                .into(),
        ),
        E::InfiniteRecursion => (None, "this value needs itself to be known".into()),
        E::UnknownObjectField { span, field_name } => {
            (Some(*span), format!("there is no field `{field_name}` in this object"))
        }
        E::FieldOfNonObject { span } => (Some(*span), "only objects have fields".into()),
        E::RepeatedFieldName { span, name } => {
            (Some(*span), format!("the field `{name}` is there twice"))
        }
        E::ImportFailed { span, path } => (Some(*span), format!("{path:?} cannot be imported")),
        E::UnknownExtVar { name } => (
            None,
            format!(
                "there is no external variable {name:?}: files are read the same way \
                            everywhere, whatever is set outside them"
            ),
        ),
        E::ManifestFunction => (None, "a function is no job; call it".into()),
        E::Other { span, message } => (*span, message.clone()),
        _ => type_error_text(kind),
    }
}

/// Texts of type errors.
fn type_error_text(kind: &EvalErrorKind) -> (Option<SpanId>, String) {
    use EvalErrorKind as E;
    let is = |got: &EvalErrorValueType| value_kind_text(*got);
    match kind {
        E::InvalidIndexedType { span, got_type } | E::InvalidSlicedType { span, got_type } => {
            (Some(*span), format!("{} has no parts", is(got_type)))
        }
        E::SliceIndexOrStepIsNotNumber { span, got_type }
        | E::StringIndexIsNotNumber { span, got_type }
        | E::ArrayIndexIsNotNumber { span, got_type } => {
            (Some(*span), format!("a place in a list is a number, not {}", is(got_type)))
        }
        E::NumericIndexIsNotValid { span, index } => {
            (Some(*span), format!("{index} is no place in a list"))
        }
        E::NumericIndexOutOfRange { span, index, length } => {
            (Some(*span), format!("place {index} is beyond the {length} there are"))
        }
        E::ObjectIndexIsNotString { span, got_type }
        | E::FieldNameIsNotString { span, got_type } => {
            (Some(*span), format!("the name of a field is a text, not {}", is(got_type)))
        }
        E::ForSpecValueIsNotArray { span, got_type } => {
            (Some(*span), format!("`for` goes over a list, not over {}", is(got_type)))
        }
        E::CondIsNotBool { span, got_type } => {
            (Some(*span), format!("a condition is true or false, not {}", is(got_type)))
        }
        E::InvalidUnaryOpType { span, rhs_type, .. } => {
            (Some(*span), format!("this cannot be done with {}", is(rhs_type)))
        }
        E::InvalidBinaryOpTypes { span, lhs_type, rhs_type, .. } => {
            (*span, format!("this cannot be done with {} and {}", is(lhs_type), is(rhs_type)))
        }
        E::InvalidStdFuncArgType { func_name, arg_index, got_type, expected_types } => {
            let wanted: Vec<&str> = expected_types.iter().map(is).collect();
            let number = arg_index + 1;
            let message = format!(
                "argument {number} of std.{func_name} is {}, not {}",
                wanted.join(" or "),
                is(got_type)
            );
            (None, message)
        }
        _ => call_error_text(kind),
    }
}

/// Texts of errors in calls and arithmetic.
fn call_error_text(kind: &EvalErrorKind) -> (Option<SpanId>, String) {
    use EvalErrorKind as E;
    match kind {
        E::CalleeIsNotFunction { span, got_type } => {
            (*span, format!("{} cannot be called", value_kind_text(*got_type)))
        }
        E::TooManyCallArgs { span, num_params } => {
            (*span, format!("too many arguments: it takes {num_params}"))
        }
        E::UnknownCallParam { span, param_name } => {
            (*span, format!("it has no parameter `{param_name}`"))
        }
        E::RepeatedCallParam { span, param_name } => {
            (*span, format!("the parameter `{param_name}` is given twice"))
        }
        E::CallParamNotBound { span, param_name } => {
            (*span, format!("the parameter `{param_name}` is missing"))
        }
        E::SuperWithoutSuperObject { span } => (Some(*span), "there is nothing above it".into()),
        E::NumberNotBitwiseSafe { span } => (*span, "the number is too large for bits".into()),
        E::NumberOverflow { span } => (*span, "the result is too large for a number".into()),
        E::NumberNan { span } => (*span, "the result is no number".into()),
        E::DivByZero { span } => (*span, "nothing can be divided by 0".into()),
        E::ShiftByNegative { span } => (*span, "a shift by less than 0".into()),
        E::AssertEqualFailed { lhs, rhs } => (None, format!("{lhs} is not equal to {rhs}")),
        _ => (None, "these values cannot be compared".into()),
    }
}

/// The token as it is written.
fn token_text(kind: STokenKind) -> &'static str {
    use STokenKind as S;
    match kind {
        S::Assert => "assert",
        S::Else => "else",
        S::Error => "error",
        S::False => "false",
        S::For => "for",
        S::Function => "function",
        S::If => "if",
        S::Import => "import",
        S::Importstr => "importstr",
        S::Importbin => "importbin",
        S::In => "in",
        S::Local => "local",
        S::Null => "null",
        S::Tailstrict => "tailstrict",
        S::Then => "then",
        S::Self_ => "self",
        S::Super => "super",
        S::True => "true",
        _ => operator_text(kind),
    }
}

fn operator_text(kind: STokenKind) -> &'static str {
    use STokenKind as S;
    match kind {
        S::Exclam => "!",
        S::ExclamEq => "!=",
        S::Dollar => "$",
        S::Percent => "%",
        S::Amp => "&",
        S::AmpAmp => "&&",
        S::LeftParen => "(",
        S::RightParen => ")",
        S::Asterisk => "*",
        S::Plus => "+",
        S::PlusColon => "+:",
        S::PlusColonColon => "+::",
        S::PlusColonColonColon => "+:::",
        S::Comma => ",",
        S::Minus => "-",
        S::Dot => ".",
        S::Slash => "/",
        S::Colon => ":",
        S::ColonColon => "::",
        S::ColonColonColon => ":::",
        S::Semicolon => ";",
        S::Lt => "<",
        S::LtLt => "<<",
        S::LtEq => "<=",
        S::Eq => "=",
        S::EqEq => "==",
        S::Gt => ">",
        S::GtEq => ">=",
        S::GtGt => ">>",
        S::LeftBracket => "[",
        S::RightBracket => "]",
        S::Hat => "^",
        S::LeftBrace => "{",
        S::Pipe => "|",
        S::PipePipe => "||",
        S::RightBrace => "}",
        S::Tilde => "~",
        _ => "?",
    }
}
