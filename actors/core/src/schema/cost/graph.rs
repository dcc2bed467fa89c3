//! The subschemas of a schema and how one leads to another.
//!
//! Built from the root along the keywords that apply a subschema and along local references. Where it can't be told
//! which of several places a reference means (an anchor that occurs twice, a `#` below a nested `$id`), it leads to
//! all of them: the bound may be too high, never too low. A reference to nowhere leads nowhere; the compiler
//! refuses it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::{MAX_EDGES, Uncheckable};
use crate::pin::number;
use crate::schema::object::ObjectSchema;
use crate::schema::place;

/// Which part of a value a subschema is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step<'a> {
    /// The same value.
    Here,
    /// The member of that name.
    Member(&'a str),
    /// Members of any name, except those the same subschema has in `properties`.
    OtherMembers,
    /// Members of any name.
    AnyMember,
    /// The item at that index.
    Item(usize),
    /// Any item.
    AnyItem,
}

#[derive(Debug)]
pub(super) struct Edge<'a> {
    pub(super) step: Step<'a>,
    pub(super) to: usize,
}

struct Node<'a> {
    value: &'a Value,
    edges: Vec<Edge<'a>>,
}

/// The graph; node 0 is the root.
pub(super) struct Graph<'a> {
    nodes: Vec<Node<'a>>,
}

/// What is left of a graph when nodes that lead nowhere are taken away again and again.
pub(super) struct Peeled {
    /// The nodes that were taken, each after all that it leads to.
    pub(super) order: Vec<usize>,
    /// The nodes that lead into a circle.
    pub(super) left: Vec<usize>,
}

/// Keywords whose value is one subschema for the same value.
const HERE: &[&str] = &["not", "if", "then", "else"];
/// Keywords whose value is a list of subschemas for the same value.
const HERE_LISTS: &[&str] = &["allOf", "anyOf", "oneOf"];
/// Keywords whose value maps names to subschemas for the same value.
const HERE_MAPS: &[&str] = &["dependentSchemas", "dependencies"];
/// Keywords that refer to a subschema for the same value.
const REFERENCES: &[&str] = &["$ref", "$dynamicRef", "$recursiveRef"];
/// Keywords whose lists are gone through for each value.
const LISTS: &[&str] = &["enum", "const", "required", "type", "dependentRequired", "dependencies"];
/// Keywords whose number is compared with the value.
const NUMBERS: &[&str] = &[
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
];

impl<'a> Graph<'a> {
    /// Builds the graph; `None` when it has more than [`MAX_EDGES`].
    pub(super) fn of(schema: &'a ObjectSchema) -> Option<Self> {
        let document = Document::read(schema.document());
        let mut graph = Self { nodes: vec![Node { value: document.root, edges: Vec::new() }] };
        let mut known = BTreeMap::from([(address(document.root), 0)]);
        let (mut next, mut count) = (0, 0);
        while let Some(node) = graph.nodes.get(next) {
            let mut edges = Vec::new();
            if let Value::Object(object) = node.value {
                let referred = document.referred(node.value, object).into_iter().map(|to| (Step::Here, to));
                for (step, value) in applied(object).into_iter().chain(referred) {
                    let to = *known.entry(address(value)).or_insert(graph.nodes.len());
                    if to == graph.nodes.len() {
                        graph.nodes.push(Node { value, edges: Vec::new() });
                    }
                    edges.push(Edge { step, to });
                }
            }
            count += edges.len();
            if count > MAX_EDGES {
                return None;
            }
            graph.nodes[next].edges = edges;
            next += 1;
        }
        Some(graph)
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Where a subschema stands.
    pub(super) fn place(&self, node: usize) -> String {
        self.place_of(self.nodes[node].value)
    }

    fn place_of(&self, value: &Value) -> String {
        place::locate(self.nodes[0].value, value).unwrap_or_else(|| "#".to_owned())
    }

    pub(super) fn edges(&self, node: usize) -> &[Edge<'a>] {
        &self.nodes[node].edges
    }

    /// What a subschema costs by itself: its keywords, and the values in the lists it goes through.
    pub(super) fn weight(&self, node: usize) -> u64 {
        let Value::Object(object) = self.nodes[node].value else { return 1 };
        let listed = LISTS.iter().filter_map(|keyword| object.get(*keyword)).map(count).sum::<u64>();
        1 + object.len() as u64 + listed
    }

    /// Takes away nodes all of whose edges of the given kind lead to nodes already taken.
    pub(super) fn peel(&self, counts: impl Fn(&Step<'_>) -> bool) -> Peeled {
        let mut waiting = vec![0_usize; self.len()];
        let mut back: Vec<Vec<usize>> = vec![Vec::new(); self.len()];
        for (from, node) in self.nodes.iter().enumerate() {
            for edge in node.edges.iter().filter(|edge| counts(&edge.step)) {
                waiting[from] += 1;
                back[edge.to].push(from);
            }
        }
        let mut order: Vec<usize> = (0..self.len()).filter(|node| waiting[*node] == 0).collect();
        let mut next = 0;
        while let Some(taken) = order.get(next).copied() {
            next += 1;
            for from in &back[taken] {
                waiting[*from] -= 1;
                if waiting[*from] == 0 {
                    order.push(*from);
                }
            }
        }
        let left = (0..self.len()).filter(|node| waiting[*node] > 0).collect();
        Peeled { order, left }
    }

    /// The limits of this schema that are too large to be compared exactly.
    pub(super) fn numbers_past_two_to_the_63(&self) -> impl Iterator<Item = Uncheckable> + '_ {
        self.nodes.iter().filter_map(|node| {
            let object = node.value.as_object()?;
            NUMBERS.iter().find_map(|keyword| {
                let value = past_two_to_the_63(object.get(*keyword)?)?;
                Some(Uncheckable::Number {
                    keyword: (*keyword).to_owned(),
                    at: self.place_of(node.value),
                    value,
                })
            })
        })
    }
}

fn past_two_to_the_63(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            let text = number.to_string();
            number::exceeds_two_to_the_63(&text).then_some(text)
        }
        Value::Array(items) => items.iter().find_map(past_two_to_the_63),
        Value::Object(object) => object.values().find_map(past_two_to_the_63),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// Counts the values in `value`, itself included.
fn count(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<u64>(),
        Value::Object(object) => 1 + object.values().map(count).sum::<u64>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Tells values apart by where they are in memory; two that look the same are still two.
fn address(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// The subschemas that one subschema applies by its keywords, and to what.
fn applied(object: &Map<String, Value>) -> Vec<(Step<'_>, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in object {
        let step = match keyword.as_str() {
            keyword if HERE.contains(&keyword) || HERE_LISTS.contains(&keyword) => Step::Here,
            keyword if HERE_MAPS.contains(&keyword) => Step::Here,
            "additionalProperties" | "unevaluatedProperties" => Step::OtherMembers,
            "patternProperties" | "propertyNames" => Step::AnyMember,
            "items" | "additionalItems" | "unevaluatedItems" | "contains" | "contentSchema" => Step::AnyItem,
            // Their steps are told by name and by index below.
            "properties" | "prefixItems" => Step::Here,
            _ => continue,
        };
        match value {
            Value::Array(items) => found.extend(items.iter().enumerate().map(|(index, item)| {
                let by_index = matches!(keyword.as_str(), "items" | "prefixItems");
                (if by_index { Step::Item(index) } else { step }, item)
            })),
            Value::Object(map) if keyword == "properties" => {
                found.extend(map.iter().map(|(name, value)| (Step::Member(name), value)));
            }
            Value::Object(map) if keyword == "patternProperties" || HERE_MAPS.contains(&keyword.as_str()) => {
                found.extend(map.values().map(|value| (step, value)));
            }
            Value::Object(_) | Value::Bool(_) => found.push((step, value)),
            Value::Null | Value::Number(_) | Value::String(_) => {}
        }
    }
    found
}

/// How many copies of recursive subschemas meet at each part of a value.
#[derive(Debug, Default)]
pub(super) struct Parts<'a> {
    any_member: u64,
    members: BTreeMap<&'a str, u64>,
    any_item: u64,
    items: BTreeMap<usize, u64>,
}

impl<'a> Parts<'a> {
    /// Adds the edges of one subschema that is applied `ways` times.
    pub(super) fn add<'e>(&mut self, edges: impl Iterator<Item = &'e Edge<'a>>, ways: u64)
    where
        'a: 'e,
    {
        let (mut other, mut named) = (0_u64, BTreeMap::<&'a str, u64>::new());
        for edge in edges {
            match edge.step {
                Step::Here => {}
                Step::Member(name) => *named.entry(name).or_default() += 1,
                Step::OtherMembers => other += 1,
                Step::AnyMember => self.any_member = self.any_member.saturating_add(ways),
                Step::Item(index) => {
                    let items = self.items.entry(index).or_default();
                    *items = items.saturating_add(ways);
                }
                Step::AnyItem => self.any_item = self.any_item.saturating_add(ways),
            }
        }
        self.any_member = self.any_member.saturating_add(other.saturating_mul(ways));
        for (name, count) in named {
            // A member with a name of its own here is none of the others here.
            let more = count.saturating_sub(other).saturating_mul(ways);
            let members = self.members.entry(name).or_default();
            *members = members.saturating_add(more);
        }
    }

    pub(super) fn most(&self) -> u64 {
        let members = self.any_member.saturating_add(self.members.values().copied().max().unwrap_or(0));
        let items = self.any_item.saturating_add(self.items.values().copied().max().unwrap_or(0));
        members.max(items)
    }
}

/// What the references of a document may mean.
struct Document<'a> {
    root: &'a Value,
    anchors: BTreeMap<&'a str, Vec<&'a Value>>,
    /// Places that `$recursiveRef` may lead to.
    recursive_anchors: Vec<&'a Value>,
    /// For each object, by address: the objects whose beginning a `#` may mean there.
    resources: BTreeMap<usize, Rc<[&'a Value]>>,
}

impl<'a> Document<'a> {
    fn read(root: &'a Value) -> Self {
        let mut document = Self {
            root,
            anchors: BTreeMap::new(),
            recursive_anchors: Vec::new(),
            resources: BTreeMap::new(),
        };
        let mut pending: Vec<(&Value, Rc<[&Value]>)> = vec![(root, Rc::from([root]))];
        while let Some((value, around)) = pending.pop() {
            match value {
                Value::Object(object) => {
                    let starts_resource = document.note_names(value, object) && !std::ptr::eq(value, root);
                    let within = if starts_resource {
                        around.iter().copied().chain([value]).collect()
                    } else {
                        around
                    };
                    pending.extend(object.values().map(|value| (value, Rc::clone(&within))));
                    document.resources.insert(address(value), within);
                }
                Value::Array(items) => pending.extend(items.iter().map(|item| (item, Rc::clone(&around)))),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        document
    }

    /// Notes the names an object gives itself; says whether a `#` inside it may mean the object.
    fn note_names(&mut self, value: &'a Value, object: &'a Map<String, Value>) -> bool {
        let mut starts_resource = false;
        for keyword in ["$anchor", "$dynamicAnchor", "$id", "id"] {
            let Some(name) = object.get(keyword).and_then(Value::as_str) else { continue };
            match (keyword, name.strip_prefix('#')) {
                ("$anchor" | "$dynamicAnchor", _) => self.anchors.entry(name).or_default().push(value),
                (_, Some(anchor)) => self.anchors.entry(anchor).or_default().push(value),
                (_, None) => starts_resource = true,
            }
        }
        if object.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            self.recursive_anchors.push(value);
        }
        starts_resource
    }

    /// The values that the references of one subschema may mean.
    fn referred(&self, value: &'a Value, object: &Map<String, Value>) -> Vec<&'a Value> {
        let mut found = Vec::new();
        for keyword in REFERENCES {
            let Some(text) = object.get(*keyword).and_then(Value::as_str) else { continue };
            let Some(fragment) = text.strip_prefix('#').map(percent_decoded) else { continue };
            if fragment.is_empty() || fragment.starts_with('/') {
                let resources = self.resources.get(&address(value)).into_iter().flat_map(|all| all.iter());
                found.extend(resources.filter_map(|resource| resource.pointer(&fragment)));
            } else {
                found.extend(self.anchors.get(fragment.as_str()).into_iter().flatten());
            }
            if *keyword == "$recursiveRef" {
                found.extend(&self.recursive_anchors);
            }
        }
        let mut seen = BTreeSet::new();
        found.retain(|value| seen.insert(address(value)));
        found
    }
}

/// Reads a URI fragment; what is no escape stays as it is.
fn percent_decoded(fragment: &str) -> String {
    let bytes = fragment.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = fragment.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
