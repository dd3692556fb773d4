//! Validated names. Names end up in DNS records, cgroup paths and URLs, so the alphabet is the one
//! that is safe in all three; a name that was parsed once never needs escaping later.

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// Longest name: a DNS label.
pub const MAX_NAME: usize = 63;

/// Why a string is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what} {value:?} is not valid: {allowed}")]
pub struct InvalidName {
    pub what: String,
    pub value: String,
    pub allowed: String,
}

/// Reads a text and checks it where it lies. Names are read and written with every row, key and
/// entry, so neither direction copies one into a `String` first.
struct TextVisitor<T, C: FnOnce(&str) -> Result<T, InvalidName>>(C, PhantomData<T>);

impl<T, C: FnOnce(&str) -> Result<T, InvalidName>> Visitor<'_> for TextVisitor<T, C> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }
}

/// A lower-case DNS label: letters, digits and inner dashes, 1 to 63 characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// # Errors
    /// When `text` is not a DNS label.
    pub fn new(text: &str) -> Result<Name, InvalidName> {
        let bytes = text.as_bytes();
        let is_allowed_char = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
        let is_allowed_edge = |b: Option<&u8>| b.is_some_and(|b| *b != b'-');
        let ok = bytes.len() <= MAX_NAME
            && is_allowed_edge(bytes.first())
            && is_allowed_edge(bytes.last())
            && bytes.iter().all(is_allowed_char);
        if ok {
            return Ok(Name(Arc::from(text)));
        }
        Err(InvalidName {
            what: "name".into(),
            value: text.chars().take(100).collect(),
            allowed: "1 to 63 characters a-z, 0-9 and -, not starting or ending with -".into(),
        })
    }

    /// The name of what has only a number: its digits, which are always a name.
    #[must_use]
    pub fn of_number(number: u64) -> Name {
        Name(Arc::from(number.to_string()))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Name {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Name, InvalidName> {
        Name::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0.as_ref().to_owned()
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        deserializer.deserialize_str(TextVisitor(Name::new, PhantomData))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Name {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Name".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "A lower-case DNS label.",
            "minLength": 1,
            "maxLength": MAX_NAME,
            "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        })
    }
}

/// A free-form key (label, attribute, package, named resource): printable ASCII without spaces,
/// 1 to 128 characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Arc<str>);

/// Longest [`Token`].
pub const MAX_TOKEN: usize = 128;

impl Token {
    /// # Errors
    /// When `text` is empty, too long, or holds a space or a non-printable character.
    pub fn new(text: &str) -> Result<Token, InvalidName> {
        let ok = !text.is_empty()
            && text.len() <= MAX_TOKEN
            && text.bytes().all(|b| b.is_ascii_graphic());
        if ok {
            return Ok(Token(Arc::from(text)));
        }
        Err(InvalidName {
            what: "token".into(),
            value: text.chars().take(140).collect(),
            allowed: "1 to 128 printable ASCII characters without spaces".into(),
        })
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Token {
    type Error = InvalidName;
    fn try_from(text: String) -> Result<Token, InvalidName> {
        Token::new(&text)
    }
}

impl From<Token> for String {
    fn from(token: Token) -> String {
        token.0.as_ref().to_owned()
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Token, D::Error> {
        deserializer.deserialize_str(TextVisitor(Token::new, PhantomData))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Token {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Token".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Printable ASCII without spaces.",
            "minLength": 1,
            "maxLength": MAX_TOKEN,
            "pattern": "^[!-~]+$",
        })
    }
}

/// `user/job`: how people and specs refer to a job inside one cell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JobKey {
    pub user: Name,
    pub job: Name,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.job)
    }
}
