//! Who may decide over HTTP: operators, each with a secret of their own.
//!
//! Owns the secrets and the file that they come from. A secret is kept only as the key of a signature; it is never
//! printed, and no error repeats a part of the file.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use hmac::{Hmac, Mac as _};
use holdpoint_core::json;
use serde::Deserialize;
use sha2::Sha256;

use crate::proxy::owned::{OwnedError, read_private};

/// The shortest secret, in bytes.
pub const SECRET_BYTES_MIN: usize = 32;
/// The longest name of an operator, in bytes.
pub const OPERATOR_BYTES_MAX: usize = 64;

/// Why secrets can't be used. No message holds a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The file is not one that its owner alone may read.
    #[error(transparent)]
    File(#[from] OwnedError),
    /// The file has another shape.
    #[error("read the secrets: {0}; write {{\"operators\": {{\"NAME\": \"SECRET\", ...}}}}")]
    Shape(String),
    /// A name that can't be one.
    #[error(
        "name an operator {0:?}: a name has 1 to {OPERATOR_BYTES_MAX} letters, digits, or any of . _ - + @ : and no others"
    )]
    Name(String),
    /// A secret that could be guessed.
    #[error(
        "use the secret of {0}: it is shorter than {SECRET_BYTES_MIN} bytes; draw one with `openssl rand -hex 32`"
    )]
    Short(String),
    /// Two names have one secret, so that each could decide as the other.
    #[error("use the secrets of {0} and {1}: they are the same; draw one for each")]
    Same(String, String),
    /// Nobody could decide anything.
    #[error("read the secrets: they name no operator")]
    Nobody,
}

/// The name of an operator, recorded as who decided. It goes into a header, so it is plain ASCII.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorName(String);

impl OperatorName {
    /// Takes a name.
    ///
    /// # Errors
    /// [`SecretsError::Name`].
    pub fn new(name: impl Into<String>) -> Result<OperatorName, SecretsError> {
        let name = name.into();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+@:".contains(&byte);
        if name.is_empty() || name.len() > OPERATOR_BYTES_MAX || !name.bytes().all(plain) {
            return Err(SecretsError::Name(shown(&name)));
        }
        Ok(OperatorName(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A secret: at least [`SECRET_BYTES_MIN`] bytes, as they are.
#[derive(Clone)]
pub struct Secret(Hmac<Sha256>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Takes a secret's bytes; none when they are too few.
    pub fn new(bytes: impl AsRef<[u8]>) -> Option<Secret> {
        let bytes = bytes.as_ref();
        if bytes.len() < SECRET_BYTES_MIN {
            return None;
        }
        Hmac::new_from_slice(bytes).ok().map(Secret)
    }

    /// A signature in the making.
    pub(super) fn mac(&self) -> Hmac<Sha256> {
        self.0.clone()
    }

    fn is_same_as(&self, other: &Secret) -> bool {
        // Of the same text, different secrets give different codes.
        let code = |secret: &Secret| secret.mac().chain_update(b"same?").finalize().into_bytes();
        code(self) == code(other)
    }
}

/// The operators and their secrets.
#[derive(Debug, Clone)]
pub struct Secrets {
    operators: BTreeMap<OperatorName, Secret>,
    shared: Option<Secret>,
}

/// A file of secrets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretsFile {
    #[serde(default)]
    operators: BTreeMap<String, String>,
    shared_secret_v1: Option<String>,
}

impl Secrets {
    /// One secret for each operator. Only requests that name their operator are taken (`v2=`).
    ///
    /// # Errors
    /// [`SecretsError::Same`] or [`SecretsError::Nobody`].
    pub fn of_operators(
        operators: impl IntoIterator<Item = (OperatorName, Secret)>,
    ) -> Result<Secrets, SecretsError> {
        Secrets { operators: operators.into_iter().collect(), shared: None }.checked()
    }

    /// One secret for everybody, as the reference has it. Requests name nobody, who decides is a label in the body, and
    /// the query is not signed (`v1=`).
    pub fn shared(secret: Secret) -> Secrets {
        Secrets { operators: BTreeMap::new(), shared: Some(secret) }
    }

    /// The same operators, and beside them one secret for whoever can only sign as the reference does.
    ///
    /// # Errors
    /// [`SecretsError::Same`] when an operator has this secret.
    pub fn and_shared(mut self, secret: Secret) -> Result<Secrets, SecretsError> {
        self.shared = Some(secret);
        self.checked()
    }

    /// Reads a file that only this user may read: `{"operators": {"ada": "...", "bob": "..."}}`. A secret's bytes are
    /// those of its text. `"shared_secret_v1": "..."` beside it, or alone, takes requests that are signed as the
    /// reference does.
    ///
    /// # Errors
    /// What is wrong with it. No message repeats a part of the file that could be a secret.
    pub fn read(path: &Path) -> Result<Secrets, SecretsError> {
        Secrets::parse(&read_private(path)?)
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// As [`Secrets::read`].
    pub fn parse(text: &[u8]) -> Result<Secrets, SecretsError> {
        // Both parsers would name what they found, and that may be a secret.
        json::check(text)
            .map_err(|_| SecretsError::Shape("it is no JSON, or a key is there twice".to_owned()))?;
        // The decoder would take a list too, and give its values to the keys by their order.
        if !text.trim_ascii_start().starts_with(b"{") {
            return Err(SecretsError::Shape("it must be an object".to_owned()));
        }
        let file: SecretsFile = serde_json::from_slice(text).map_err(|error| {
            SecretsError::Shape(format!("line {} has something else than is expected", error.line()))
        })?;
        let secret =
            |name: &str, text: &str| Secret::new(text).ok_or_else(|| SecretsError::Short(shown(name)));
        let mut operators = BTreeMap::new();
        for (name, text) in &file.operators {
            operators.insert(OperatorName::new(name)?, secret(name, text)?);
        }
        let shared = file.shared_secret_v1.map(|text| secret(SHARED, &text)).transpose()?;
        Secrets { operators, shared }.checked()
    }

    fn checked(self) -> Result<Secrets, SecretsError> {
        let named = self.operators.iter().map(|(name, secret)| (name.as_str(), secret));
        let all: Vec<_> = named.chain(self.shared.iter().map(|secret| (SHARED, secret))).collect();
        for (at, (name, secret)) in all.iter().enumerate() {
            if let Some((other, _)) = all[..at].iter().find(|(_, earlier)| earlier.is_same_as(secret)) {
                return Err(SecretsError::Same(shown(other), shown(name)));
            }
        }
        if all.is_empty() { Err(SecretsError::Nobody) } else { Ok(self) }
    }

    /// The operators' names.
    pub fn operators(&self) -> impl Iterator<Item = &OperatorName> {
        self.operators.keys()
    }

    /// Whether requests that are signed as the reference does are taken.
    pub fn takes_v1(&self) -> bool {
        self.shared.is_some()
    }

    pub(super) fn of(&self, operator: &OperatorName) -> Option<&Secret> {
        self.operators.get(operator)
    }

    pub(super) fn of_everybody(&self) -> Option<&Secret> {
        self.shared.as_ref()
    }
}

/// What an error calls the secret that nobody has for themselves.
const SHARED: &str = "shared_secret_v1";
/// The longest name that an error repeats: one that is as long as a secret may be one, written in the wrong place.
const SHOWN_BYTES_MAX: usize = 24;

fn shown(name: &str) -> String {
    if name.len() <= SHOWN_BYTES_MAX {
        return name.to_owned();
    }
    format!("{}… ({} bytes)", &name[..name.floor_char_boundary(4)], name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Secrets, String> {
        Secrets::parse(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn each_operator_has_a_secret_of_their_own() {
        let secrets = parsed(&format!(
            r#"{{"operators": {{"ada": "{}", "chat:bob@example.com": "{}"}}}}"#,
            "a".repeat(32),
            "b".repeat(32)
        ))
        .unwrap();
        let names: Vec<&str> = secrets.operators().map(OperatorName::as_str).collect();
        assert_eq!(names, ["ada", "chat:bob@example.com"]);
        assert!(!secrets.takes_v1());
        assert!(parsed(&format!(r#"{{"shared_secret_v1": "{}"}}"#, "s".repeat(32))).unwrap().takes_v1());
    }

    #[test]
    fn secrets_that_do_not_keep_operators_apart_are_refused() {
        let same = format!(r#"{{"operators": {{"ada": "{0}", "bob": "{0}"}}}}"#, "a".repeat(40));
        assert!(parsed(&same).unwrap_err().contains("ada and bob"));
        let shared =
            format!(r#"{{"operators": {{"ada": "{0}"}}, "shared_secret_v1": "{0}"}}"#, "a".repeat(40));
        assert!(parsed(&shared).unwrap_err().contains("shared_secret_v1"));
        let short = format!(r#"{{"operators": {{"ada": "{}"}}}}"#, "a".repeat(31));
        assert!(parsed(&short).unwrap_err().contains("openssl rand"));
        for name in ["", "a b", "ä", "a\\n", &"n".repeat(65)] {
            let text = format!(r#"{{"operators": {{"{name}": "{}"}}}}"#, "a".repeat(32));
            assert!(parsed(&text).unwrap_err().contains("name an operator"), "{name}");
        }
        assert!(parsed("{}").unwrap_err().contains("no operator"));
    }

    #[test]
    fn a_list_is_no_file_of_secrets() {
        let text = format!(r#" [{{"ada": "{}"}}, "{}"]"#, "a".repeat(32), "b".repeat(32));
        assert!(parsed(&text).unwrap_err().contains("must be an object"));
        assert!(parsed("null").unwrap_err().contains("must be an object"));
    }

    #[test]
    fn no_error_and_no_debugging_shows_a_secret() {
        let secret = "hunter2-".repeat(5);
        for text in [
            format!(r#"{{"operators": "{secret}"}}"#),
            format!(r#"{{"operators": {{"ada": ["{secret}"]}}}}"#),
            format!(r#"{{"{secret}": 1}}"#),
            format!(r#"{{"operators": {{"ada": "{secret}"}}"#),
            format!(r#"{{"operators": {{"ada": "{secret}", "ada": "{secret}"}}}}"#),
            format!(r#"{{"operators": {{"{secret}": "ada"}}}}"#),
            format!(r#"{{"operators": {{"{secret}{secret}": "ada"}}}}"#),
            secret.clone(),
        ] {
            let refused = parsed(&text).unwrap_err();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
        let secrets = parsed(&format!(r#"{{"operators": {{"ada": "{secret}"}}}}"#)).unwrap();
        assert!(!format!("{secrets:?}").contains("hunter2"), "{secrets:?}");
    }
}
