//! What checking a value against a schema can cost at most, told from the schema alone.
//!
//! Validators have no fuel: a schema of 1,700 bytes whose definitions refer to each other twice a level takes
//! seconds to check one number, and a server may send such a schema. So the graph of its subschemas is walked
//! before anything compiles it. Owns that bound and the refusals that come out of it. Never validates.
//!
//! The bound. Every subschema has a weight, about its number of keywords and listed values. What is applied to the
//! same value (`allOf`, `$ref`, ...) or to parts of it (`properties`, `items`, ...) adds its own cost, once for
//! every way it is reached: that is `per_value`. A schema that refers to itself through a part is cut there, and
//! `recursion` says how many of its copies can meet at one part of one value; each level of the value multiplies
//! by that. A schema that refers to itself without going into a part means nothing and is refused.

mod graph;
#[cfg(test)]
mod tests;

use thiserror::Error;

use super::object::ObjectSchema;
use crate::json::reader::{Event, Reader};
use graph::{Graph, Step};

/// The most that one schema, spread out, may weigh.
pub const MAX_EXPANDED: u64 = 50_000;

/// The most edges between subschemas that are followed. A schema of the longest size has half as many, unless its
/// references are ambiguous.
const MAX_EDGES: usize = 200_000;

/// The most edges that are gone over to tell how recursion multiplies: well under a second.
const MAX_EDGE_VISITS: usize = 20_000_000;

/// The most work that [`Cost::admits`] lets one value ask for, in checks of one subschema against one part.
///
/// A check takes some tens of nanoseconds, so this is seconds, not minutes.
pub const MAX_WORK: u64 = 100_000_000;

/// Why a schema can't be checked against.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Uncheckable {
    /// Spread out along its references it is larger than [`MAX_EXPANDED`].
    #[error("the input schema grows past {MAX_EXPANDED} parts when its references are followed")]
    TooLarge,
    /// A subschema refers back to itself for the same value.
    #[error("the input schema refers to itself at {at} without going into a part of the value")]
    Endless {
        /// One subschema of the circle.
        at: String,
    },
    /// A limit is so large that it can't be compared exactly.
    #[error("{keyword} at {at} is {value}, too large to be compared exactly (more than 2^63)")]
    Number {
        /// Which keyword.
        keyword: String,
        /// The subschema that holds it.
        at: String,
        /// The number as it is written.
        value: String,
    },
}

/// What checking costs, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// Checks for each part of a value.
    pub per_value: u64,
    /// For a schema that refers to itself: how many copies of it can meet at one part of a value.
    pub recursion: Option<u64>,
}

impl Cost {
    /// Says whether a value can be checked within [`MAX_WORK`], given its text. Text that is no JSON is not.
    #[must_use]
    pub fn admits_text(&self, json: &str) -> bool {
        let (mut parts, mut deepest) = (0_u64, 0_usize);
        let mut reader = Reader::new(json);
        loop {
            match reader.next() {
                Ok(Some(Event::Key(_) | Event::ObjectEnd | Event::ArrayEnd)) => {}
                Ok(Some(
                    Event::ObjectStart
                    | Event::ArrayStart
                    | Event::String(_)
                    | Event::Number(_)
                    | Event::Literal(_),
                )) => parts += 1,
                Ok(None) => return self.admits(parts, u32::try_from(deepest).unwrap_or(u32::MAX)),
                Err(_) => return false,
            }
            deepest = deepest.max(reader.depth());
        }
    }

    /// Says whether a value of so many parts, nested so deep, can be checked within [`MAX_WORK`].
    ///
    /// `parts` counts every object, array and scalar in it; `depth` counts what stands inside one another.
    #[must_use]
    pub fn admits(&self, parts: u64, depth: u32) -> bool {
        self.work(parts, depth) <= MAX_WORK
    }

    fn work(&self, parts: u64, depth: u32) -> u64 {
        let copies = match self.recursion {
            None => 1,
            Some(meeting) => meeting.saturating_pow(depth).saturating_mul(u64::from(depth) + 1),
        };
        self.per_value.saturating_mul(parts).saturating_mul(copies)
    }
}

/// Bounds the cost of checking against a schema.
///
/// # Errors
/// [`Uncheckable`] for a schema that must not be compiled, or whose limits can't be compared exactly.
pub fn bound(schema: &ObjectSchema) -> Result<Cost, Uncheckable> {
    let graph = Graph::of(schema).ok_or(Uncheckable::TooLarge)?;
    if let Some(number) = graph.numbers_past_two_to_the_63().next() {
        return Err(number);
    }
    let in_place = graph.peel(|step| *step == Step::Here);
    if let Some(circle) = in_place.left.first() {
        return Err(Uncheckable::Endless { at: graph.place(*circle) });
    }
    let every = graph.peel(|_| true);
    let mut recursive = vec![false; graph.len()];
    for node in &every.left {
        recursive[*node] = true;
    }
    let mut cost = vec![0_u64; graph.len()];
    for node in every.order.iter().chain(in_place.order.iter().filter(|node| recursive[**node])) {
        cost[*node] = graph.edges(*node).iter().fold(graph.weight(*node), |sum, edge| {
            let cut = edge.step != Step::Here && recursive[edge.to];
            sum.saturating_add(if cut { 1 } else { cost[edge.to] })
        });
    }
    let per_value = cost.iter().copied().max().unwrap_or(1);
    if per_value > MAX_EXPANDED {
        return Err(Uncheckable::TooLarge);
    }
    let recursion = match every.left.is_empty() {
        true => None,
        false => Some(meeting(&graph, &in_place.order, &recursive).ok_or(Uncheckable::TooLarge)?),
    };
    Ok(Cost { per_value, recursion })
}

/// The most copies of recursive subschemas that one of them can bring to the same part of a value; `None` when that
/// takes too long to tell.
fn meeting(graph: &Graph<'_>, leaves_first: &[usize], recursive: &[bool]) -> Option<u64> {
    let roots_first: Vec<usize> =
        leaves_first.iter().rev().copied().filter(|node| recursive[*node]).collect();
    let mut most = 1;
    let mut visits = 0;
    let mut ways = vec![0_u64; graph.len()];
    for (position, start) in roots_first.iter().enumerate() {
        // How often each subschema is applied to the value that `start` is applied to.
        ways.fill(0);
        ways[*start] = 1;
        let mut parts = graph::Parts::default();
        for node in &roots_first[position..] {
            visits += 1;
            if ways[*node] == 0 {
                continue;
            }
            let edges = graph.edges(*node).iter().filter(|edge| recursive[edge.to]);
            for edge in edges.clone().filter(|edge| edge.step == Step::Here) {
                ways[edge.to] = ways[edge.to].saturating_add(ways[*node]);
            }
            parts.add(edges, ways[*node]);
            visits += graph.edges(*node).len();
            if visits > MAX_EDGE_VISITS {
                return None;
            }
        }
        most = most.max(parts.most());
    }
    Some(most)
}
