//! What came of loading a server's tools, for an operator to read at the start.
//!
//! Fields hold names and reasons as the server chose them; the text form, and nothing else, escapes them, so that no
//! name can print a line of its own. The JSON form is for programs and escapes only what JSON needs.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::sanitize::sanitize;
use crate::tool::SideEffect;

/// One tool that a model may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Registration {
    /// The server's name for it.
    pub tool: String,
    /// The name that a model sees.
    pub name: String,
    /// What it may do.
    #[serde(serialize_with = "class")]
    pub side_effect: SideEffect,
    /// The contradiction that the operator let pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint_mismatch: Option<String>,
}

/// One tool that failed a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The server's name for it.
    pub tool: String,
    /// Which check, and why.
    pub reason: String,
}

/// What became of every tool of one server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// The server's name in the configuration.
    pub server: String,
    /// What a model may call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registered: Vec<Registration>,
    /// Pinned and classified, and refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refusal>,
    /// Offered by the server, and not in the manifest.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unpinned: Vec<String>,
    /// Pinned, and without a rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unclassified: Vec<String>,
}

fn class<S: Serializer>(side_effect: &SideEffect, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(side_effect.as_str())
}

impl Report {
    /// Gives the text form line by line, one entry each, without line ends.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let server = sanitize(&self.server);
        let registered = self.registered.iter().map(|entry| {
            let (tool, name) = (sanitize(&entry.tool), sanitize(&entry.name));
            let mismatch = entry
                .hint_mismatch
                .as_deref()
                .map_or_else(String::new, |hint| format!(" [hint mismatch allowed: {}]", sanitize(hint)));
            format!("registered {tool} as {name} ({}){mismatch}", entry.side_effect)
        });
        let refused = self
            .refused
            .iter()
            .map(|entry| format!("refused {}: {}", sanitize(&entry.tool), sanitize(&entry.reason)));
        let unclassified =
            self.unclassified.iter().map(|tool| format!("unclassified {}: no rule", sanitize(tool)));
        let unpinned =
            self.unpinned.iter().map(|tool| format!("unpinned {}: not in the manifest", sanitize(tool)));
        registered
            .chain(refused)
            .chain(unclassified)
            .chain(unpinned)
            .map(move |entry| format!("{server}: {entry}"))
    }
}

/// Writes one line for each entry, each with its line end.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().try_for_each(|line| writeln!(f, "{line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report {
            server: "fs".to_owned(),
            registered: vec![
                Registration {
                    tool: "read".to_owned(),
                    name: "fs_read".to_owned(),
                    side_effect: SideEffect::ReadOnly,
                    hint_mismatch: None,
                },
                Registration {
                    tool: "wipe".to_owned(),
                    name: "wipe".to_owned(),
                    side_effect: SideEffect::LocalMutation,
                    hint_mismatch: Some("a hint".to_owned()),
                },
            ],
            refused: vec![Refusal { tool: "bad".to_owned(), reason: "it changed".to_owned() }],
            unpinned: vec!["new".to_owned()],
            unclassified: vec!["other".to_owned()],
        }
    }

    #[test]
    fn a_report_has_one_line_an_entry_in_a_fixed_order() {
        assert_eq!(
            report().to_string(),
            "fs: registered read as fs_read (read_only)\n\
             fs: registered wipe as wipe (local_mutation) [hint mismatch allowed: a hint]\n\
             fs: refused bad: it changed\n\
             fs: unclassified other: no rule\n\
             fs: unpinned new: not in the manifest\n"
        );
        assert_eq!(Report::default().to_string(), "");
    }

    #[test]
    fn a_report_in_json_leaves_empty_lists_out() {
        assert_eq!(
            serde_json::to_string(&report()).unwrap(),
            r#"{"server":"fs","registered":[{"tool":"read","name":"fs_read","side_effect":"read_only"},{"tool":"wipe","name":"wipe","side_effect":"local_mutation","hint_mismatch":"a hint"}],"refused":[{"tool":"bad","reason":"it changed"}],"unpinned":["new"],"unclassified":["other"]}"#
        );
        let bare = Report { server: "fs".to_owned(), ..Report::default() };
        assert_eq!(serde_json::to_string(&bare).unwrap(), r#"{"server":"fs"}"#);
    }

    #[test]
    fn a_name_can_neither_print_a_line_of_its_own_nor_move_the_cursor() {
        let forged = "x\u{1b}[2K\r\u{1b}[32mfs: registered shell as fs_shell (read_only)\u{1b}[0m";
        let report = Report {
            server: "f\ns".to_owned(),
            registered: vec![Registration {
                tool: "ok".to_owned(),
                name: "fs_ok\u{200b}".to_owned(),
                side_effect: SideEffect::ReadOnly,
                hint_mismatch: Some("hint\u{9b}31m".to_owned()),
            }],
            refused: vec![Refusal {
                tool: forged.to_owned(),
                reason: "the server now says: \u{202e}gnp.exe".to_owned(),
            }],
            unclassified: vec!["new\nfs: registered rm as fs_rm (read_only)".to_owned()],
            unpinned: vec!["z\u{2028}ero".to_owned()],
        };
        let text = report.to_string();
        assert_eq!(text.lines().count(), 4);
        assert!(!text.contains("\nfs: registered rm"), "{text}");
        let bad = |c: char| c != '\n' && (c.is_control() || "\u{200b}\u{202e}\u{2028}".contains(c));
        assert!(!text.contains(bad), "{text:?}");
        assert_eq!(report.refused[0].tool, forged, "the fields keep what the server chose");
    }
}
