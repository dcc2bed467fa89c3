//! The hints a server gives about a tool. They are recorded as received and never trusted: they can contradict an
//! operator's classification, never relax it.

use serde::{Deserialize, Serialize};

use super::scan;

/// A tool's annotations, each absent when the server didn't send it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Annotations {
    /// The tool may destroy what was there. Absent says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destructive_hint: Option<bool>,
    /// A repeated call changes nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent_hint: Option<bool>,
    /// The tool reaches beyond what the server holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_world_hint: Option<bool>,
    /// The tool changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_hint: Option<bool>,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl Annotations {
    /// Reads what a server sent, keys matched exactly; `null` is absent.
    ///
    /// # Errors
    /// The key of a value that has the wrong kind, or `annotations` when the whole is no object.
    pub(crate) fn read(value: &str) -> Result<Option<Self>, &'static str> {
        if value == "null" {
            return Ok(None);
        }
        let members = scan::members(value).map_err(|_| "annotations")?;
        let hint = |key: &'static str| match scan::last(&members, key) {
            None | Some("null") => Ok(None),
            Some(value) => scan::truth(value).map(Some).ok_or(key),
        };
        let title = match scan::last(&members, "title") {
            None | Some("null") => None,
            Some(value) => Some(scan::text(value).ok_or("title")?),
        };
        Ok(Some(Self {
            destructive_hint: hint("destructiveHint")?,
            idempotent_hint: hint("idempotentHint")?,
            open_world_hint: hint("openWorldHint")?,
            read_only_hint: hint("readOnlyHint")?,
            title,
        }))
    }

    /// Says whether the server claims that the tool only reads; silence is no claim.
    pub fn claims_read_only(&self) -> bool {
        self.read_only_hint == Some(true)
    }

    /// Says whether the server says outright that the tool destroys; silence is not that.
    pub fn claims_destructive(&self) -> bool {
        self.destructive_hint == Some(true)
    }

    /// Lists the claims for a person: `readOnly,openWorld`, or `claims nothing`.
    pub fn claims(&self) -> String {
        let claims: Vec<&str> = [
            ("readOnly", self.read_only_hint),
            ("destructive", self.destructive_hint),
            ("idempotent", self.idempotent_hint),
            ("openWorld", self.open_world_hint),
        ]
        .into_iter()
        .filter_map(|(name, hint)| (hint == Some(true)).then_some(name))
        .collect();
        if claims.is_empty() { "claims nothing".to_owned() } else { claims.join(",") }
    }
}

/// What a person is told of the hints of a tool that may have none.
pub fn claims(annotations: Option<&Annotations>) -> String {
    annotations.map_or_else(|| "no annotations".to_owned(), Annotations::claims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_kept_as_they_were_received() {
        let sent =
            r#"{"title":"Read","readOnlyHint":false,"destructiveHint":true,"vendor":1,"ReadOnlyHint":true}"#;
        let read = Annotations::read(sent).unwrap().unwrap();
        assert_eq!(read.read_only_hint, Some(false));
        assert_eq!(read.destructive_hint, Some(true));
        assert_eq!(read.idempotent_hint, None);
        assert_eq!(
            serde_json::to_string(&read).unwrap(),
            r#"{"destructiveHint":true,"readOnlyHint":false,"title":"Read"}"#
        );
        assert_eq!(Annotations::read("null"), Ok(None));
        assert_eq!(Annotations::read("{}"), Ok(Some(Annotations::default())));
        assert_eq!(Annotations::read(r#"{"readOnlyHint":null}"#), Ok(Some(Annotations::default())));
    }

    #[test]
    fn a_hint_of_the_wrong_kind_is_named() {
        assert_eq!(Annotations::read(r#"{"openWorldHint":"yes"}"#), Err("openWorldHint"));
        assert_eq!(Annotations::read(r#"{"title":1}"#), Err("title"));
        assert_eq!(Annotations::read("[]"), Err("annotations"));
    }

    #[test]
    fn claims_are_listed_for_people() {
        let all = Annotations::read(
            r#"{"openWorldHint":true,"idempotentHint":true,"readOnlyHint":true,"destructiveHint":true}"#,
        )
        .unwrap();
        assert_eq!(claims(all.as_ref()), "readOnly,destructive,idempotent,openWorld");
        assert_eq!(
            claims(Some(&Annotations { read_only_hint: Some(false), ..Annotations::default() })),
            "claims nothing"
        );
        assert_eq!(claims(None), "no annotations");
    }
}
