//! A server's tools, read from the bytes it sent.
//!
//! Owns the reading of one page of `tools/list` ([`Page`]) and the bounds on following pages ([`Listing`]), as a
//! state machine: whoever talks to the server hands pages in and is told which cursor to ask for next. Keys are
//! matched exactly and with case, so a server can't show one list to a lenient reader and another to a strict one.
//! It never asks a server anything and never compares with a pin.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::annotations::Annotations;
use super::canonical::{self, canonical, description_hash, schema_hash};
use super::scan;

/// The most pages that are read. Honest servers send one or a few.
pub const MAX_PAGES: usize = 100;
/// The most tools that are taken from one server.
pub const MAX_TOOLS: usize = 1000;

/// Why a listing fails as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// A page is not what the protocol says.
    #[error("page of tools: {what}: {error}")]
    Page {
        /// The part of it that is wrong.
        what: &'static str,
        /// How.
        error: scan::Error,
    },
    /// One tool's entry is not what the protocol says.
    #[error("tool {tool:?}: {field} has the wrong kind")]
    Field {
        /// The tool's name.
        tool: String,
        /// The field.
        field: &'static str,
    },
    /// A tool's input schema can't be pinned.
    #[error("tool {tool:?}: input schema: {error}")]
    Schema {
        /// The tool's name.
        tool: String,
        /// Why.
        error: canonical::Error,
    },
    /// A name occurs twice.
    #[error("the server lists tool {0:?} twice")]
    Twice(String),
    /// There is one page more than are read.
    #[error("the server lists more than {MAX_PAGES} pages of tools")]
    Pages,
    /// There are more tools than are taken.
    #[error("the server lists more than {MAX_TOOLS} tools")]
    Tools,
    /// The server sends us in a circle.
    #[error("the server's cursor {0:?} repeats")]
    Cursor(String),
}

/// One tool as the server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTool {
    /// The server's name for it.
    pub name: String,
    /// Its description; empty when absent.
    pub description: String,
    /// Its input schema in canonical form; `null` when absent.
    pub input_schema: String,
    /// Its hints, when the server sent any.
    pub annotations: Option<Annotations>,
    /// The whole entry as it was received.
    pub raw: String,
}

impl ListedTool {
    /// Hashes the schema as a pin does.
    pub fn schema_hash(&self) -> String {
        schema_hash(&self.input_schema)
    }

    /// Hashes the description as a pin does.
    pub fn description_hash(&self) -> String {
        description_hash(&self.description)
    }

    /// Reads one entry; nothing for one whose name is not a string.
    fn read(entry: &str) -> Result<Option<Self>, Error> {
        let members = scan::members(entry).map_err(|error| Error::Page { what: "an entry", error })?;
        let Some(name) = scan::last(&members, "name").and_then(scan::text) else { return Ok(None) };
        let field = |field| Error::Field { tool: name.clone(), field };
        let description = match scan::last(&members, "description") {
            None | Some("null") => String::new(),
            Some(value) => scan::text(value).ok_or_else(|| field("description"))?,
        };
        let annotations = match scan::last(&members, "annotations") {
            None => None,
            Some(value) => Annotations::read(value).map_err(field)?,
        };
        let input_schema = canonical(scan::last(&members, "inputSchema").unwrap_or(""))
            .map_err(|error| Error::Schema { tool: name.clone(), error })?;
        Ok(Some(Self { name, description, input_schema, annotations, raw: entry.to_owned() }))
    }
}

/// One page of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The tools on it, in the server's order.
    pub tools: Vec<ListedTool>,
    /// Where the next page is, if there is one.
    pub next_cursor: Option<String>,
}

impl Page {
    /// Reads the result of one `tools/list`, from its bytes.
    ///
    /// An entry whose name is not a string is skipped. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// A result, entry or cursor of the wrong kind; a schema that has no canonical form.
    pub fn read(result: &[u8]) -> Result<Self, Error> {
        let result = scan::lossy(result);
        let page = |what| move |error| Error::Page { what, error };
        let members = scan::members(&result).map_err(page("the result"))?;
        let entries = match scan::last(&members, "tools") {
            None | Some("null") => Vec::new(),
            Some(tools) => scan::items(tools).map_err(page("tools"))?,
        };
        let mut tools = Vec::with_capacity(entries.len().min(MAX_TOOLS));
        for entry in entries {
            if tools.len() > MAX_TOOLS {
                return Err(Error::Tools);
            }
            tools.extend(ListedTool::read(entry)?);
        }
        let next_cursor = match scan::last(&members, "nextCursor") {
            None | Some("null") => None,
            Some(value) => {
                let kind = || Error::Page { what: "nextCursor", error: scan::Error::Kind("a string") };
                Some(scan::text(value).ok_or_else(kind)?).filter(|cursor| !cursor.is_empty())
            }
        };
        Ok(Self { tools, next_cursor })
    }
}

/// What to do after a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The listing is complete.
    Done,
    /// Ask for the page at this cursor.
    Page(String),
}

/// All tools of a server, as far as they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    tools: BTreeMap<String, ListedTool>,
    pages: usize,
    cursors: BTreeSet<String>,
}

impl Listing {
    /// Starts with nothing read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one page and says what comes next.
    ///
    /// # Errors
    /// A name that occurs twice, too many tools or pages, a cursor that was seen before. The listing is then
    /// incomplete and must not be used.
    pub fn take(&mut self, page: Page) -> Result<Next, Error> {
        self.pages += 1;
        for tool in page.tools {
            if self.tools.contains_key(&tool.name) {
                return Err(Error::Twice(tool.name));
            }
            if self.tools.len() == MAX_TOOLS {
                return Err(Error::Tools);
            }
            self.tools.insert(tool.name.clone(), tool);
        }
        let Some(cursor) = page.next_cursor else { return Ok(Next::Done) };
        if !self.cursors.insert(cursor.clone()) {
            return Err(Error::Cursor(cursor));
        }
        if self.pages == MAX_PAGES {
            return Err(Error::Pages);
        }
        Ok(Next::Page(cursor))
    }

    /// Gives one tool.
    pub fn get(&self, name: &str) -> Option<&ListedTool> {
        self.tools.get(name)
    }

    /// Gives all tools, sorted by name.
    pub fn tools(&self) -> impl Iterator<Item = &ListedTool> {
        self.tools.values()
    }

    /// Says how many tools there are.
    pub fn len(&self) -> usize {
        self.tools.len()
    }

    /// Says whether the server offers nothing.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page::read(text.as_bytes()).unwrap()
    }

    fn listed(names: impl IntoIterator<Item = String>) -> Page {
        let entry = |name| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#);
        let entries: Vec<String> = names.into_iter().map(entry).collect();
        page(&format!(r#"{{"tools":[{}]}}"#, entries.join(",")))
    }

    #[test]
    fn a_page_is_read_from_its_bytes() {
        let raw = r#"{"name":"read","description":"R\u00e9ad <a>.","inputSchema":{"type":"object","properties":{"n":{"maximum":9007199254740993,"minimum":1.0}}},"annotations":{"readOnlyHint":true},"execution":{}}"#;
        let read = page(&format!(r#"{{"_meta":{{}},"tools":[ {raw} ,{{"name":"bare"}}],"nextCursor":"2"}}"#));
        assert_eq!(read.next_cursor.as_deref(), Some("2"));
        let tool = &read.tools[0];
        assert_eq!(tool.description, "Réad <a>.");
        assert_eq!(
            tool.input_schema,
            r#"{"properties":{"n":{"maximum":9007199254740993,"minimum":1}},"type":"object"}"#
        );
        assert_eq!(tool.annotations.as_ref().unwrap().read_only_hint, Some(true));
        assert_eq!(tool.raw, raw);
        let bare = &read.tools[1];
        assert_eq!((bare.description.as_str(), bare.input_schema.as_str()), ("", "null"));
        assert_eq!(bare.annotations, None);
    }

    #[test]
    fn keys_are_matched_exactly_at_every_level() {
        let read = page(
            r#"{"tools":[{"name":"t","Name":"u","description":"seen","Description":"hidden","inputSchema":{"type":"object"},"InputSchema":{"x":1}}],
                "Tools":[{"name":"other"}],"NextCursor":"2"}"#,
        );
        assert_eq!(read.next_cursor, None);
        assert_eq!(read.tools.len(), 1);
        assert_eq!(read.tools[0].name, "t");
        assert_eq!(read.tools[0].description, "seen");
        assert_eq!(read.tools[0].input_schema, r#"{"type":"object"}"#);
    }

    #[test]
    fn an_entry_whose_name_is_not_a_string_is_skipped() {
        let read =
            page(r#"{"tools":[{"name":1,"inputSchema":{"maximum":1e400}},{"title":"x"},{"name":"t"}]}"#);
        assert_eq!(read.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["t"]);
        assert_eq!(page("{}").tools, []);
    }

    #[test]
    fn what_the_protocol_does_not_allow_fails_the_page_and_names_the_tool() {
        let error = |text: &str| Page::read(text.as_bytes()).unwrap_err();
        assert!(matches!(error("[]"), Error::Page { what: "the result", .. }));
        assert!(matches!(error(r#"{"tools":{}}"#), Error::Page { what: "tools", .. }));
        assert!(matches!(error(r#"{"tools":[1]}"#), Error::Page { what: "an entry", .. }));
        assert!(matches!(error(r#"{"nextCursor":1}"#), Error::Page { what: "nextCursor", .. }));
        assert_eq!(
            error(r#"{"tools":[{"name":"t","description":1}]}"#),
            Error::Field { tool: "t".to_owned(), field: "description" }
        );
        assert_eq!(
            error(r#"{"tools":[{"name":"t","annotations":{"readOnlyHint":1}}]}"#),
            Error::Field { tool: "t".to_owned(), field: "readOnlyHint" }
        );
        let schema = error(r#"{"tools":[{"name":"t","inputSchema":{"maximum":1e400}}]}"#);
        assert!(schema.to_string().contains("\"t\"") && schema.to_string().contains("1e400"), "{schema}");
    }

    #[test]
    fn a_tool_listed_twice_fails_on_one_page_and_across_pages() {
        let twice = Listing::new().take(listed(["a".to_owned(), "a".to_owned()])).unwrap_err();
        assert_eq!(twice, Error::Twice("a".to_owned()));
        assert!(twice.to_string().contains("\"a\" twice"));
        let mut listing = Listing::new();
        let first = Page { next_cursor: Some("2".to_owned()), ..listed(["a".to_owned()]) };
        assert_eq!(listing.take(first), Ok(Next::Page("2".to_owned())));
        assert_eq!(listing.take(listed(["a".to_owned()])), Err(Error::Twice("a".to_owned())));
    }

    #[test]
    fn pages_stop_at_a_hundred_and_at_a_cursor_that_repeats() {
        let numbered = |number: usize, cursor: Option<String>| Page {
            next_cursor: cursor,
            ..listed([format!("t{number}")])
        };
        let mut endless = Listing::new();
        for number in 1..MAX_PAGES {
            let cursor = format!("c{number}");
            assert_eq!(endless.take(numbered(number, Some(cursor.clone()))), Ok(Next::Page(cursor)));
        }
        let mut exactly = endless.clone();
        assert_eq!(exactly.take(numbered(MAX_PAGES, None)), Ok(Next::Done));
        assert_eq!(exactly.len(), MAX_PAGES);
        let beyond = endless.take(numbered(MAX_PAGES, Some("more".to_owned()))).unwrap_err();
        assert_eq!(beyond.to_string(), "the server lists more than 100 pages of tools");

        let mut circle = Listing::new();
        let same = || Page { tools: Vec::new(), next_cursor: Some("same".to_owned()) };
        assert_eq!(circle.take(same()), Ok(Next::Page("same".to_owned())));
        assert_eq!(circle.take(same()), Err(Error::Cursor("same".to_owned())));
    }

    #[test]
    fn exactly_a_thousand_tools_are_taken_and_one_more_fails() {
        let many = |count: usize| listed((0..count).map(|number| format!("t{number}")));
        let mut listing = Listing::new();
        assert_eq!(listing.take(many(MAX_TOOLS)), Ok(Next::Done));
        assert_eq!(listing.len(), MAX_TOOLS);
        assert_eq!(listing.take(listed(["one more".to_owned()])), Err(Error::Tools));
        assert_eq!(Listing::new().take(many(MAX_TOOLS + 1)), Err(Error::Tools));
    }

    #[test]
    fn a_cursor_that_is_empty_ends_the_listing() {
        assert_eq!(page(r#"{"tools":[],"nextCursor":""}"#).next_cursor, None);
        assert_eq!(page(r#"{"tools":[],"nextCursor":null}"#).next_cursor, None);
    }
}
