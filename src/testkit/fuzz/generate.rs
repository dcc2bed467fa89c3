//! Making values that fit a schema.

use serde_json::{Map, Number, Value};

use super::random::Random;
use super::{Fuzz, FuzzError};

/// Keywords that nothing is made for.
const UNSUPPORTED: [&str; 19] = [
    "pattern",
    "multipleOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "contains",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "minContains",
    "maxContains",
];

/// The characters of made strings: what is usual, what is escaped somewhere, and what is longer than a byte.
const ALPHABET: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-./:<>&\"\\éß→";

/// The range of numbers whose schema names none.
pub(super) const RANGE: (i64, i64) = (-1_000, 1_000);

/// Makes values for one schema.
pub(super) struct Generator<'a> {
    document: &'a Value,
    fuzz: &'a Fuzz,
    pub(super) random: Random,
}

/// A schema inside the document, and where it stands.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) schema: &'a Value,
    pub(super) pointer: String,
}

impl<'a> Place<'a> {
    pub(super) fn get(&self, keyword: &str) -> Option<&'a Value> {
        self.schema.get(keyword)
    }

    pub(super) fn count(&self, keyword: &str) -> Option<usize> {
        let number = self.get(keyword)?;
        number.as_u64().and_then(|n| usize::try_from(n).ok())
    }

    pub(super) fn child(&self, schema: &'a Value, step: &str) -> Place<'a> {
        let step = step.replace('~', "~0").replace('/', "~1");
        Place { schema, pointer: format!("{}/{step}", self.pointer) }
    }

    pub(super) fn properties(&self) -> Option<&'a Map<String, Value>> {
        self.get("properties")?.as_object()
    }

    pub(super) fn required(&self) -> Vec<&'a str> {
        let names = self.get("required").and_then(Value::as_array);
        names.map(|names| names.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
    }

    /// The schema of an array's items after its prefix.
    pub(super) fn items(&self) -> Option<Place<'a>> {
        let items = self.get("items").filter(|items| !items.is_array())?;
        Some(self.child(items, "items"))
    }

    fn prefix(&self) -> &'a [Value] {
        let tuple = self.get("prefixItems").or_else(|| self.get("items").filter(|items| items.is_array()));
        tuple.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn none(&self, why: impl Into<String>) -> FuzzError {
        let place = if self.pointer.is_empty() { "/" } else { &self.pointer };
        FuzzError::NoValue { place: place.to_owned(), why: why.into() }
    }

    fn check_supported(&self) -> Result<(), FuzzError> {
        let used = UNSUPPORTED.iter().filter(|keyword| self.get(keyword).is_some());
        let keywords: Vec<String> = used.map(|keyword| (*keyword).to_owned()).collect();
        if keywords.is_empty() {
            return Ok(());
        }
        let place = if self.pointer.is_empty() { "/" } else { &self.pointer };
        Err(FuzzError::Unsupported { place: place.to_owned(), keywords })
    }

    /// The types that it names, or the one that its keywords speak of.
    fn types(&self) -> Vec<&'a str> {
        match self.get("type") {
            Some(Value::String(name)) => return vec![name],
            Some(Value::Array(names)) => return names.iter().filter_map(Value::as_str).collect(),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => {}
        }
        let any = |keywords: &[&str]| keywords.iter().any(|keyword| self.get(keyword).is_some());
        let object = ["properties", "required", "additionalProperties", "minProperties", "maxProperties"];
        if any(&object) {
            vec!["object"]
        } else if any(&["items", "prefixItems", "minItems", "maxItems", "uniqueItems"]) {
            vec!["array"]
        } else if any(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]) {
            vec!["number"]
        } else {
            vec!["string"]
        }
    }

    /// The whole numbers that it allows, within [`RANGE`] where it says nothing.
    pub(super) fn bounds(&self) -> (i64, i64) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a bound beyond every whole number is the last of them"
        )]
        let number = |keyword: &str, round: fn(f64) -> f64| {
            let bound = self.get(keyword)?.as_f64()?;
            Some(round(bound) as i64)
        };
        let low = number("minimum", f64::ceil);
        let above = number("exclusiveMinimum", f64::floor).map(|n| n.saturating_add(1));
        let high = number("maximum", f64::floor);
        let under = number("exclusiveMaximum", f64::ceil).map(|n| n.saturating_sub(1));
        let low = low.max(above).unwrap_or(high.or(under).map_or(RANGE.0, |high| high.min(RANGE.0)));
        let high = [high, under].into_iter().flatten().min().unwrap_or(RANGE.1.max(low));
        (low, high.max(low))
    }
}

impl<'a> Generator<'a> {
    pub(super) fn new(document: &'a Value, fuzz: &'a Fuzz, random: Random) -> Generator<'a> {
        Generator { document, fuzz, random }
    }

    /// The schema itself.
    pub(super) fn root(&self) -> Place<'a> {
        Place { schema: self.document, pointer: String::new() }
    }

    /// A value for the whole schema.
    pub(super) fn value(&mut self) -> Result<Value, FuzzError> {
        let root = self.root();
        self.make(&root, 0)
    }

    /// Follows references to the schema that has the keywords. One that leads nowhere, or in a circle, stays.
    pub(super) fn resolve(&self, place: &Place<'a>) -> Place<'a> {
        let mut place = place.clone();
        for _ in 0..32 {
            let Some(reference) = place.get("$ref").and_then(Value::as_str) else { break };
            let Some(pointer) = reference.strip_prefix('#') else { break };
            let Some(schema) = self.document.pointer(pointer) else { break };
            place = Place { schema, pointer: pointer.to_owned() };
        }
        place
    }

    fn make(&mut self, place: &Place<'a>, depth: usize) -> Result<Value, FuzzError> {
        let place = self.resolve(place);
        match place.schema {
            Value::Bool(true) => return Ok(Value::Object(Map::new())),
            Value::Bool(false) => return Err(place.none("accepts nothing")),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {}
        }
        place.check_supported()?;
        if place.get("$ref").is_some() {
            return Err(place.none("refers to what is not found"));
        }
        if depth > self.fuzz.max_depth * 8 {
            return Err(place.none("requires itself without an end"));
        }
        if let Some(constant) = place.get("const") {
            return Ok(constant.clone());
        }
        if let Some(members) = place.get("enum").and_then(Value::as_array).filter(|all| !all.is_empty()) {
            return Ok(members[self.random.below(members.len())].clone());
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(branches) = place.get(keyword).and_then(Value::as_array).filter(|all| !all.is_empty())
            {
                let at = self.random.below(branches.len());
                let branch = place.child(&branches[at], keyword);
                return self.make(&branch, depth);
            }
        }
        let types = place.types();
        match types.get(self.random.below(types.len())).copied() {
            Some("object") => self.object(&place, depth),
            Some("array") => self.array(&place, depth),
            Some("string") => Ok(Value::String(self.string(Some(&place)))),
            Some("integer") => {
                let (low, high) = place.bounds();
                Ok(Value::Number(self.random.between(low, high).into()))
            }
            Some("number") => Ok(self.number(&place)),
            Some("boolean") => Ok(Value::Bool(self.random.coin())),
            Some(_) | None => Ok(Value::Null),
        }
    }

    fn object(&mut self, place: &Place<'a>, depth: usize) -> Result<Value, FuzzError> {
        let required = place.required();
        let nothing = Map::new();
        let properties = place.properties().unwrap_or(&nothing);
        let most = place.count("maxProperties").unwrap_or(usize::MAX);
        let least = place.count("minProperties").unwrap_or(0);
        let mut object = Map::new();
        for name in &required {
            let value = match place.properties().and_then(|all| all.get(*name)) {
                Some(schema) => self.make(&place.child(schema, name), depth + 1)?,
                None => self.additional(place, depth)?,
            };
            object.insert((*name).to_owned(), value);
        }
        let mut left: Vec<&String> = properties.keys().filter(|name| !object.contains_key(*name)).collect();
        left.sort();
        for name in left {
            let wanted = object.len() < least || depth < self.fuzz.max_depth && self.random.coin();
            if !wanted || object.len() >= most {
                continue;
            }
            let Some(schema) = place.properties().and_then(|all| all.get(name)) else { continue };
            let value = self.make(&place.child(schema, name), depth + 1)?;
            object.insert(name.clone(), value);
        }
        let mut extra = 0;
        while object.len() < least {
            let value = self.additional(place, depth)?;
            object.insert(format!("extra_{extra}"), value);
            extra += 1;
        }
        Ok(Value::Object(object))
    }

    /// A value for a property that has no schema of its own.
    fn additional(&mut self, place: &Place<'a>, depth: usize) -> Result<Value, FuzzError> {
        match place.get("additionalProperties") {
            Some(Value::Bool(false)) => Err(place.none("requires a property that it does not admit")),
            Some(schema @ Value::Object(_)) => {
                let child = place.child(schema, "additionalProperties");
                self.make(&child, depth + 1)
            }
            Some(Value::Null | Value::Bool(true) | Value::Number(_) | Value::String(_) | Value::Array(_))
            | None => Ok(Value::String(self.string(None))),
        }
    }

    fn array(&mut self, place: &Place<'a>, depth: usize) -> Result<Value, FuzzError> {
        let least = place.count("minItems").unwrap_or(0);
        let usual = if depth >= self.fuzz.max_depth { least } else { self.fuzz.max_items };
        let most = place.count("maxItems").unwrap_or(usize::MAX).min(usual.max(least));
        let wanted = least + self.random.below(most.saturating_sub(least) + 1);
        let unique = place.get("uniqueItems").and_then(Value::as_bool).unwrap_or(false);
        let (prefix, items) = (place.prefix(), place.items());
        let mut array: Vec<Value> = Vec::with_capacity(wanted);
        let mut tries = 0;
        while array.len() < wanted {
            let item = match (prefix.get(array.len()), &items) {
                (Some(schema), _) => self.make(&place.child(schema, "prefixItems"), depth + 1)?,
                (None, Some(items)) if items.schema == &Value::Bool(false) => break,
                (None, Some(items)) => self.make(items, depth + 1)?,
                (None, None) => Value::String(self.string(None)),
            };
            if !(unique && array.contains(&item)) {
                array.push(item);
                continue;
            }
            tries += 1;
            if tries > 10 * wanted + 10 {
                if array.len() >= least {
                    break;
                }
                return Err(place.none(format!("asks for {least} different items, which are not found")));
            }
        }
        Ok(Value::Array(array))
    }

    fn string(&mut self, place: Option<&Place<'a>>) -> String {
        let least = place.and_then(|place| place.count("minLength")).unwrap_or(0);
        let most = place.and_then(|place| place.count("maxLength")).unwrap_or(usize::MAX);
        let most = most.min(self.fuzz.max_length.max(least));
        let length = least + self.random.below(most.saturating_sub(least) + 1);
        let alphabet: Vec<char> = ALPHABET.chars().collect();
        (0..length).map(|_| alphabet[self.random.below(alphabet.len())]).collect()
    }

    /// A number with at most two decimals, inside the bounds.
    fn number(&mut self, place: &Place<'a>) -> Value {
        let (low, high) = place.bounds();
        let whole = self.random.between(low, high);
        let cents = if whole < high { self.random.below(100) } else { 0 };
        if cents == 0 || whole < 0 {
            return Value::Number(whole.into());
        }
        let decimal = format!("{whole}.{cents:02}").parse::<Number>();
        decimal.map_or_else(|_| Value::Number(whole.into()), Value::Number)
    }
}
