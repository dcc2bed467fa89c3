//! Where a provider listens, and whether a key may go there.
//!
//! Owns the reading of an address as it was written, before anything makes it normal: what a resolver or a URL library
//! would read as this machine is not this machine. Never resolves a name.

use std::net::IpAddr;

use reqwest::Url;

use super::ConfigError;

/// A server's address, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    base: String,
    url: Url,
    encrypted: bool,
    loopback: bool,
}

impl Endpoint {
    /// Checks the address that an adapter's paths are appended to; slashes at its end don't count.
    ///
    /// # Errors
    /// When it is not `http` or `https` with a host, carries user information, a query or a fragment, or would take a key
    /// (`has_key`) over plain http to a host that [`is_loopback`] does not accept.
    pub fn check(provider: &'static str, base: &str, has_key: bool) -> Result<Endpoint, ConfigError> {
        let refused = |why| ConfigError::Address { provider, base: base.to_owned(), why };
        // A URL library drops line breaks and takes a backslash for a slash, so that it sees another host than a reader.
        if base.contains(|char: char| char == '\\' || char.is_whitespace() || char.is_control()) {
            return Err(refused("it holds a space, a control character or a backslash"));
        }
        let (scheme, rest) =
            base.split_once("://").ok_or_else(|| refused("it has no scheme, as in https://"))?;
        let encrypted = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(refused("its scheme must be http or https")),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if let Some((_, host)) = authority.rsplit_once('@') {
            return Err(ConfigError::UserInformation { provider, host: host.to_owned() });
        }
        if rest.contains(['?', '#']) {
            return Err(refused("it must have neither a query nor a fragment"));
        }
        let host = host(authority);
        let url = Url::parse(base)
            .ok()
            .filter(|_| !host.is_empty())
            .ok_or_else(|| refused("it has no usable host"))?;
        let loopback = is_loopback(host);
        if has_key && !encrypted && !loopback {
            return Err(ConfigError::KeyInTheClear { provider, host: authority.to_owned() });
        }
        Ok(Endpoint { base: base.trim_end_matches('/').to_owned(), url, encrypted, loopback })
    }

    /// The address without slashes at its end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Whether it is written as this machine.
    pub fn is_loopback(&self) -> bool {
        self.loopback
    }

    /// Whether it is `https`.
    pub fn is_encrypted(&self) -> bool {
        self.encrypted
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }
}

/// The host of an authority: without its port, and without the brackets of an IPv6 address.
fn host(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, _port)) => host,
        None => authority.rsplit_once(':').map_or(authority, |(host, _port)| host),
    }
}

/// Whether `host`, without a port or brackets, is this machine: exactly `localhost`, or a loopback address written out.
///
/// Nothing else is: not `LOCALHOST`, `localhost.` or a name under it, no short or whole-number form of an address, which
/// only some resolvers read as one, and no address with a zone.
///
/// ```
/// use holdpoint::model::provider::is_loopback;
///
/// assert!(["localhost", "127.0.0.2", "::1", "::ffff:127.0.0.1"].into_iter().all(is_loopback));
/// assert!(!["LOCALHOST", "localhost.", "127.1", "2130706433", "0.0.0.0"].into_iter().any(is_loopback));
/// ```
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}
