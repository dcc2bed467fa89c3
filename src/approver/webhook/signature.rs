//! What is signed of a request, and how.
//!
//! Owns the two texts that a signature is over, and their comparison, which takes the same time wherever it fails. A
//! client signs with [`Secret::sign`]; the channel checks with `verify`.
//!
//! `v2=` followed by 64 lower-case hex digits is HMAC-SHA256, under the operator's secret, of
//!
//! ```text
//! holdpoint-approvals-v2 LF operator LF timestamp LF nonce LF method LF target LF body
//! ```
//!
//! where the timestamp is decimal Unix seconds, the target is path and query as they are sent, percent-encoding and all,
//! and the body is the rest. No part before the body can hold a line feed, so no two requests have one text; and no text
//! of `v1` begins so. `v1=` is the reference's: `timestamp LF nonce LF method LF path LF body` under the one secret that
//! all share, where the path is the decoded one and the query is not signed.

use hmac::{Hmac, Mac as _};
use holdpoint_actors::clock;
use percent_encoding::percent_decode_str;
use sha2::Sha256;

use super::secret::{OperatorName, Secret, Secrets};

/// The header of the request's time, in Unix seconds.
pub const TIMESTAMP: &str = "x-approval-timestamp";
/// The header of a text that its sender uses once: 1 to [`NONCE_BYTES_MAX`] bytes.
pub const NONCE: &str = "x-approval-nonce";
/// The header of the signature.
pub const SIGNATURE: &str = "x-approval-signature";
/// The header that names the operator; signed, and needed with a signature of version 2.
pub const OPERATOR: &str = "x-approval-operator";

/// The longest nonce.
pub const NONCE_BYTES_MAX: usize = 64;

/// What a signature of version 2 is over begins so, and none of version 1 does.
const V2: &str = "holdpoint-approvals-v2";

/// A request as it is signed.
#[derive(Debug, Clone, Copy)]
pub struct Signing<'a> {
    /// Its time, in Unix seconds.
    pub timestamp: i64,
    /// The text that its sender uses once.
    pub nonce: &'a [u8],
    /// Its method, as `POST`.
    pub method: &'a str,
    /// Its path and query, as they are sent.
    pub target: &'a str,
    /// Its body; empty when it has none.
    pub body: &'a [u8],
}

impl Secret {
    /// Signs a request of an operator's: the value of [`SIGNATURE`].
    pub fn sign(&self, operator: &OperatorName, request: &Signing<'_>) -> String {
        format!("v2={}", hex(&v2(self, operator, request).finalize().into_bytes()))
    }

    /// Signs a request as the reference does, without its query. None when the path has a line feed in it.
    pub fn sign_v1(&self, request: &Signing<'_>) -> Option<String> {
        Some(format!("v1={}", hex(&v1(self, request)?.finalize().into_bytes())))
    }

    /// Signs a request of an operator's that is sent now: the four headers, by name.
    pub fn headers(
        &self,
        operator: &OperatorName,
        method: &str,
        target: &str,
        body: &[u8],
    ) -> [(&'static str, String); 4] {
        let (timestamp, nonce) = (clock::wall().as_nanos() / 1_000_000_000, hex(&clock::random::<16>()));
        let signing = Signing { timestamp, nonce: nonce.as_bytes(), method, target, body };
        let signature = self.sign(operator, &signing);
        [
            (OPERATOR, operator.to_string()),
            (TIMESTAMP, timestamp.to_string()),
            (NONCE, nonce),
            (SIGNATURE, signature),
        ]
    }
}

/// Who signed a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Signer {
    /// An operator, by a secret of their own.
    Operator(OperatorName),
    /// Whoever has the secret that all share.
    Anybody,
}

/// Checks a signature, the value of [`SIGNATURE`]; gives who signed, and its bytes. `operator` is what [`OPERATOR`] says.
pub(super) fn verify(
    secrets: &Secrets,
    signature: &[u8],
    operator: Option<&[u8]>,
    request: &Signing<'_>,
) -> Result<(Signer, [u8; 32]), &'static str> {
    if let Some(digits) = signature.strip_prefix(b"v2=") {
        let name = operator.ok_or("missing or repeated X-Approval-Operator")?;
        let name = std::str::from_utf8(name).ok().and_then(|name| OperatorName::new(name).ok());
        let name = name.ok_or(NO_MATCH)?;
        let secret = secrets.of(&name).ok_or(NO_MATCH)?;
        let bytes = matching(v2(secret, &name, request), digits)?;
        return Ok((Signer::Operator(name), bytes));
    }
    let Some(digits) = signature.strip_prefix(b"v1=") else { return Err(NO_MATCH) };
    let secret = secrets.of_everybody().ok_or("signatures of version 1 are not taken here; sign as v2")?;
    if operator.is_some() {
        return Err(
            "X-Approval-Operator is not part of a signature of version 1; leave it out, or sign as v2",
        );
    }
    let bytes = matching(v1(secret, request).ok_or(NO_MATCH)?, digits)?;
    Ok((Signer::Anybody, bytes))
}

/// Said of a wrong signature and of an operator that there is not, alike.
const NO_MATCH: &str = "signature does not match";

fn matching(mac: Hmac<Sha256>, digits: &[u8]) -> Result<[u8; 32], &'static str> {
    let bytes = unhex(digits).ok_or(NO_MATCH)?;
    mac.verify_slice(&bytes).map_err(|_| NO_MATCH)?;
    Ok(bytes)
}

fn v2(secret: &Secret, operator: &OperatorName, request: &Signing<'_>) -> Hmac<Sha256> {
    let Signing { timestamp, nonce, method, target, body } = request;
    secret
        .mac()
        .chain_update(format!("{V2}\n{operator}\n{timestamp}\n"))
        .chain_update(nonce)
        .chain_update(format!("\n{method}\n{target}\n"))
        .chain_update(body)
}

fn v1(secret: &Secret, request: &Signing<'_>) -> Option<Hmac<Sha256>> {
    let Signing { timestamp, nonce, method, target, body } = request;
    let path = target.split('?').next().unwrap_or_default();
    let path: Vec<u8> = percent_decode_str(path).collect();
    // With one in it, a part of the body could be passed off as the end of the path.
    if path.contains(&b'\n') {
        return None;
    }
    let mac = secret.mac().chain_update(format!("{timestamp}\n")).chain_update(nonce);
    Some(mac.chain_update(format!("\n{method}\n")).chain_update(path).chain_update(b"\n").chain_update(body))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads 64 lower-case hex digits. Only these: another way of writing the same bytes would be another signature.
fn unhex(digits: &[u8]) -> Option<[u8; 32]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"hash":"abc"}"#;

    fn secret(letter: &str) -> Secret {
        Secret::new(letter.repeat(32)).unwrap()
    }

    fn ada() -> OperatorName {
        OperatorName::new("ada").unwrap()
    }

    fn request() -> Signing<'static> {
        let target = "/runs/r%201/approvals/a1/approve?x=1";
        Signing { timestamp: 1_790_000_000, nonce: b"n1", method: "POST", target, body: BODY }
    }

    fn both() -> Secrets {
        let ada = [(ada(), secret("a"))];
        Secrets::of_operators(ada).unwrap().and_shared(secret("s")).unwrap()
    }

    #[test]
    fn the_signatures_are_those_that_openssl_makes() {
        // printf 'holdpoint-approvals-v2\nada\n1790000000\nn1\nPOST\n/runs/r%%201/approvals/a1/approve?x=1\n{"hash":"abc"}' \
        //   | openssl dgst -sha256 -hmac aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
        assert_eq!(
            secret("a").sign(&ada(), &request()),
            "v2=517b408a58af624f89a5b52ef85d4f39fdc4d2d5669f619598ee6703e29c9803"
        );
        // printf '1790000000\nn1\nPOST\n/runs/r 1/approvals/a1/approve\n{"hash":"abc"}' \
        //   | openssl dgst -sha256 -hmac ssssssssssssssssssssssssssssssss
        assert_eq!(
            secret("s").sign_v1(&request()).unwrap(),
            "v1=62e1d17cd9d7da5314dfd05d65cc3f78c1516a032828be9c27d55093c387aa65"
        );
    }

    #[test]
    fn anything_that_is_changed_is_another_signature() {
        let signed = secret("a").sign(&ada(), &request());
        let check = |request: &Signing<'_>, operator: &[u8]| {
            verify(&both(), signed.as_bytes(), Some(operator), request).map(|(signer, _)| signer)
        };
        assert_eq!(check(&request(), b"ada"), Ok(Signer::Operator(ada())));
        for changed in [
            Signing { timestamp: 1_790_000_001, ..request() },
            Signing { nonce: b"n2", ..request() },
            Signing { method: "GET", ..request() },
            Signing { target: "/runs/r%201/approvals/a1/reject?x=1", ..request() },
            Signing { target: "/runs/r%201/approvals/a1/approve?x=2", ..request() },
            Signing { target: "/runs/r%201/approvals/a1/approve", ..request() },
            Signing { target: "/runs/r 1/approvals/a1/approve?x=1", ..request() },
            Signing { body: b"{}", ..request() },
            Signing {
                target: "/runs/r%201/approvals/a1/approve?x=1\n{\"hash\"",
                body: b":\"abc\"}",
                ..request()
            },
        ] {
            assert_eq!(check(&changed, b"ada"), Err(NO_MATCH), "{changed:?}");
        }
        for operator in [&b"bob"[..], b"Ada", b"ada ", b"", b"a\xff"] {
            assert_eq!(check(&request(), operator), Err(NO_MATCH), "{operator:?}");
        }
    }

    #[test]
    fn version_1_is_taken_only_where_it_is_switched_on_and_names_nobody() {
        let signed = secret("s").sign_v1(&request()).unwrap();
        let check = |secrets: &Secrets, operator, request: &Signing<'_>| {
            verify(secrets, signed.as_bytes(), operator, request).map(|(signer, _)| signer)
        };
        assert_eq!(check(&both(), None, &request()), Ok(Signer::Anybody));
        let other_query = Signing { target: "/runs/r%201/approvals/a1/approve?x=2", ..request() };
        assert_eq!(check(&both(), None, &other_query), Ok(Signer::Anybody), "version 1 leaves it out");
        assert!(check(&both(), Some(b"ada"), &request()).unwrap_err().contains("leave it out"));
        let alone = Secrets::of_operators([(ada(), secret("a"))]).unwrap();
        assert!(check(&alone, None, &request()).unwrap_err().contains("not taken here"));
        let feed = Signing { target: "/runs/r1/cancel%0Ax", ..request() };
        assert_eq!(secret("s").sign_v1(&feed), None);
    }

    #[test]
    fn a_signature_is_written_in_one_way_only() {
        let signed = secret("a").sign(&ada(), &request());
        for other in [
            signed.to_uppercase(),
            signed.replace("v2=", "v2=0x"),
            format!("{signed} "),
            signed[..signed.len() - 1].to_owned(),
            signed.replace("v2=", "v3="),
            signed.replace("v2=", ""),
            signed.replace("v2=", "v1="),
            String::new(),
        ] {
            assert!(verify(&both(), other.as_bytes(), Some(b"ada"), &request()).is_err(), "{other}");
        }
    }
}
