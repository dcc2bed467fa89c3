//! Which requests this process has met.
//!
//! Owns a guess and nothing more: a request that was met may have left something in the record, one that was not most
//! likely has nothing there. Whoever acts on it has the writer look again. Forgetting, or taking one request for
//! another, costs one look at the record.

use std::collections::HashSet;

use holdpoint_core::ids::RequestKey;

/// Requests that are remembered: about a mebibyte.
const MET_MAX: usize = 65_536;

/// The requests met, each by the first eight bytes of its key, which is a hash.
#[derive(Debug, Default)]
pub(super) struct Met(HashSet<u64>);

impl Met {
    /// Whether the request is met for the first time; from now on it is not.
    pub(super) fn is_first(&mut self, key: &RequestKey) -> bool {
        // Without a number the key is no hash, and nothing is guessed of it.
        let short = key.as_str().get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        if self.0.len() >= MET_MAX {
            self.0.clear();
        }
        short.is_some_and(|short| self.0.insert(short))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdpoint_core::hash::request_key;

    #[test]
    fn a_request_is_met_for_the_first_time_once() {
        let (mut met, key) =
            (Met::default(), |n: u32| request_key("pay", Some(n.to_string().as_bytes())).unwrap());
        assert!(met.is_first(&key(1)));
        assert!(!met.is_first(&key(1)));
        assert!(met.is_first(&key(2)));
        assert!(!met.is_first(&RequestKey::from("no hash")));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut met = Met((0..MET_MAX as u64).collect());
        assert!(met.is_first(&RequestKey::from("f".repeat(64))));
        assert_eq!(met.0.len(), 1);
    }
}
