//! `--name value` pairs of a figure or a part. Each is named once, and none that nobody reads.

use std::collections::BTreeMap;
use std::io;
use std::str::FromStr;

#[derive(Debug, Default)]
pub struct Flags(BTreeMap<String, String>);

impl Flags {
    /// # Errors
    /// When something is not `--name value`.
    pub fn parse(arguments: &[String]) -> io::Result<Flags> {
        let mut flags = BTreeMap::new();
        for pair in arguments.chunks(2) {
            match pair {
                [name, value] if name.starts_with("--") => {
                    flags.insert(name[2..].to_owned(), value.clone());
                }
                other => {
                    let message =
                        format!("argument {:?} is not valid; allowed: --name value", other[0]);
                    return Err(io::Error::other(message));
                }
            }
        }
        Ok(Flags(flags))
    }

    /// A number, or what it is when nobody says.
    ///
    /// # Errors
    /// When it was given and is none.
    pub fn number<T: FromStr>(&self, name: &str, default: T) -> io::Result<T> {
        let Some(text) = self.0.get(name) else { return Ok(default) };
        text.parse().map_err(|_| {
            io::Error::other(format!("--{name} {text:?} is not valid; allowed: a whole number"))
        })
    }

    /// # Errors
    /// When it was not given.
    pub fn text(&self, name: &str) -> io::Result<&str> {
        let missing = || io::Error::other(format!("--{name} is missing"));
        self.0.get(name).map(String::as_str).ok_or_else(missing)
    }

    /// Words between commas.
    ///
    /// # Errors
    /// When it was not given.
    pub fn list(&self, name: &str) -> io::Result<Vec<String>> {
        Ok(self.text(name)?.split(',').map(str::to_owned).collect())
    }
}
