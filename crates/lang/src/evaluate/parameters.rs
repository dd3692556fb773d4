//! Calls the function that a file is with the parameters it is given. The evaluator says which
//! parameters are missing or unknown, one at a time; all of them are collected into one answer,
//! together with those that the file declares as far as its syntax shows them.

use crate::diagnostic::Diagnostic;
use crate::inputs::Inputs;
use crate::locate::DeclaredParameter;
use crate::schema_check::suggestion_text;
use rsjsonnet_lang::interner::InternedStr;
use rsjsonnet_lang::program::{Callbacks, EvalError, EvalErrorKind, Program, Thunk, Value};
use std::collections::BTreeMap;

/// The parameters that do not fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub missing: Vec<String>,
    pub unknown: Vec<String>,
}

impl Mismatch {
    pub(super) fn none_taken(inputs: &Inputs) -> Mismatch {
        let unknown = inputs.parameters.keys().cloned().collect();
        Mismatch { missing: Vec::new(), unknown }
    }

    fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unknown.is_empty()
    }

    /// The errors, with all parameters that there are.
    pub(super) fn diagnostics(
        &self,
        file: &str,
        declared: &[DeclaredParameter],
    ) -> Vec<Diagnostic> {
        let names = || declared.iter().map(|parameter| parameter.name.as_str());
        let listed = |names: &[String]| {
            names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let described = |parameter: &DeclaredParameter| {
            if parameter.has_default {
                format!("{} (may be left out)", parameter.name)
            } else {
                parameter.name.clone()
            }
        };
        let all: Vec<String> = declared.iter().map(described).collect();
        let help = match all.as_slice() {
            [] => "the file has no parameters: a Jsonnet file has them if it is a function".into(),
            all => format!("--set NAME=VALUE for {}", all.join(", ")),
        };
        let mut found = Vec::new();
        match self.missing.as_slice() {
            [] => {}
            [one] => found.push(format!("the parameter `{one}` is missing")),
            many => found.push(format!("the parameters {} are missing", listed(many))),
        }
        match self.unknown.as_slice() {
            [] => {}
            [one] => found.push(format!(
                "the file has no parameter `{one}`{}",
                suggestion_text(one, names())
            )),
            many => found.push(format!("the file has no parameters {}", listed(many))),
        }
        found
            .into_iter()
            .map(|message| Diagnostic::error(file, message).with_help(help.clone()))
            .collect()
    }
}

/// The arguments of a call that is tried until the function takes it.
pub(super) struct Arguments<'p> {
    pub given: BTreeMap<String, Thunk<'p>>,
    pub offered: BTreeMap<String, Thunk<'p>>,
}

/// The value of the function, or what does not fit.
pub(super) fn call<'p>(
    program: &mut Program<'p>,
    function: &Thunk<'p>,
    mut arguments: Arguments<'p>,
    callbacks: &mut dyn Callbacks<'p>,
) -> Result<Result<Value<'p>, EvalError>, Mismatch> {
    let mut mismatch = Mismatch::default();
    loop {
        let named: Vec<(InternedStr<'p>, Thunk<'p>)> = arguments
            .given
            .iter()
            .chain(&arguments.offered)
            .map(|(name, thunk)| (program.intern_str(name), thunk.clone()))
            .collect();
        let result = program.eval_call(function, &[], &named, callbacks);
        // Only the call from outside has no place in a file.
        match result.as_ref().map_err(|error| &error.kind) {
            Err(EvalErrorKind::UnknownCallParam { span: None, param_name }) => {
                if arguments.offered.remove(param_name).is_none() {
                    arguments.given.remove(param_name);
                    mismatch.unknown.push(param_name.clone());
                }
            }
            Err(EvalErrorKind::CallParamNotBound { span: None, param_name }) => {
                // Bound to anything, so that the next one that is missing is named too.
                let nothing = program.value_to_thunk(&Value::null());
                arguments.given.insert(param_name.clone(), nothing);
                mismatch.missing.push(param_name.clone());
            }
            _ if mismatch.is_empty() => return Ok(result),
            _ => return Err(mismatch),
        }
    }
}
