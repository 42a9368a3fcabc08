//! Takes the keys of a section out of the tree: presence, type, range, default, unknown names.

use super::error::{Fault, Position, Remark, shown};
use super::key::{Effect, Key, Kind, Section};
use super::nearest::nearest;
use super::parse::{self, Member, Node, Value};
use super::raw::{OTHER, SECTIONS};

/// A value of the file, or its default.
#[derive(Clone, Debug, Default)]
pub(super) struct Field<T> {
    /// The value, of the right type and in range.
    pub(super) value: T,
    /// Where it stands; None for a default.
    pub(super) at: Option<Position>,
    /// Its JSON path.
    pub(super) path: String,
}

impl<T: PartialEq> PartialEq for Field<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> Field<T> {
    /// A fault of this value.
    pub(super) fn fault(&self, what: impl Into<String>, advice: impl Into<String>) -> Fault {
        Fault {
            path: self.path.clone(),
            at: self.at,
            what: what.into(),
            advice: advice.into(),
        }
    }

    /// A remark about this value.
    pub(super) fn remark(&self, what: impl Into<String>) -> Remark {
        Remark {
            path: self.path.clone(),
            at: self.at,
            what: what.into(),
        }
    }
}

/// After this many faults no nearest key is looked for: the file is something else.
const SUGGESTIONS_MAX: usize = 200;

/// Walks the sections of one file and collects what is wrong.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    root: &'a [Member],
    section: Vec<&'a Member>,
    path: String,
    pub(super) faults: Vec<Fault>,
    pub(super) remarks: Vec<Remark>,
}

impl<'a> Reader<'a> {
    /// Starts with the top-level object; `faults` are those of the parse.
    pub(super) fn new(root: &'a Node, faults: Vec<Fault>) -> Self {
        let members = if let Value::Object(members) = &root.value {
            members.as_slice()
        } else {
            &[]
        };
        let mut reader = Self {
            root: members,
            section: Vec::new(),
            path: String::new(),
            faults,
            remarks: Vec::new(),
        };
        for member in members {
            let tops = SECTIONS
                .iter()
                .filter(|section| section.parent().is_none())
                .map(Section::name);
            let mut known = tops.chain(OTHER.iter().copied());
            if !known.any(|name| name.eq_ignore_ascii_case(&member.name)) {
                reader.unknown("", member);
            }
        }
        reader
    }

    /// Starts inside an object of a list; one that is not an object is a fault and empty.
    pub(super) fn item(node: &'a Node, path: &str) -> Self {
        let mut faults = Vec::new();
        let section = if let Value::Object(members) = &node.value {
            members.iter().collect()
        } else {
            faults.push(Fault {
                path: path.to_owned(),
                at: Some(node.at),
                what: format!("{} found", describe(&node.value)),
                advice: "an object: { ... }".to_owned(),
            });
            Vec::new()
        };
        Self {
            root: &[],
            section,
            path: path.to_owned(),
            faults,
            remarks: Vec::new(),
        }
    }

    /// Ends an object of a list: what was not taken is unknown.
    pub(super) fn close_item(&mut self, section: &Section) {
        for member in core::mem::take(&mut self.section) {
            let names = section.keys.iter().map(|key| key.name);
            self.faults.push(Fault {
                path: format!("{}.{}", self.path, shown(&member.name)),
                at: Some(member.at),
                what: "unknown key".to_owned(),
                advice: match nearest(&member.name, names) {
                    Some(name) => format!("nearest known: {name}"),
                    None => "docs/config.md lists every key".to_owned(),
                },
            });
        }
    }

    /// Begins a section: an absent one is empty, one that is not an object is a fault and empty.
    pub(super) fn open(&mut self, section: &Section) {
        let mut members = self.root;
        for name in section.path.split('.') {
            let member = members
                .iter()
                .find(|member| member.name.eq_ignore_ascii_case(name));
            members = match member.map(|member| &member.node) {
                Some(Node {
                    value: Value::Object(inside),
                    ..
                }) => inside,
                Some(node) if name == section.name() => {
                    let what = format!("{} found", describe(&node.value));
                    let advice = "an object: { ... }".to_owned();
                    self.faults.push(Fault {
                        path: section.path.to_owned(),
                        at: Some(node.at),
                        what,
                        advice,
                    });
                    &[]
                }
                _ => &[],
            };
        }
        self.section = members.iter().collect();
        section.path.clone_into(&mut self.path);
    }

    /// Takes one key of the open section.
    pub(super) fn field<T: Take + PartialEq>(&mut self, key: &Key) -> Field<T> {
        let path = format!("{}.{}", self.path, key.name);
        let default = default_of(key, &path);
        let index = self
            .section
            .iter()
            .position(|member| member.name.eq_ignore_ascii_case(key.name));
        let Some(member) = index.map(|index| self.section.swap_remove(index)) else {
            return Field {
                value: default,
                at: None,
                path,
            };
        };
        let at = Some(member.node.at);
        let Some(value) = T::take(&member.node, &path, &key.kind, &mut self.faults) else {
            return Field {
                value: default,
                at,
                path,
            };
        };
        if value != default {
            let what = match key.effect {
                Effect::Honoured => None,
                Effect::NoMeaning(why) => Some(format!("has no effect: {why}")),
                Effect::NotServed(instead) => {
                    Some(format!("is not served by this version: {instead}"))
                }
            };
            self.remarks.extend(what.map(|what| Remark {
                path: path.clone(),
                at,
                what,
            }));
        }
        Field { value, at, path }
    }

    /// Ends a section: what was not taken is unknown.
    pub(super) fn close(&mut self, section: &Section) {
        let nested = |member: &Member| {
            let mut inside = SECTIONS
                .iter()
                .filter(|other| other.parent() == Some(section.path));
            inside.any(|other| other.name().eq_ignore_ascii_case(&member.name))
        };
        for member in core::mem::take(&mut self.section) {
            if !nested(member) {
                self.unknown(section.path, member);
            }
        }
    }

    fn unknown(&mut self, section: &str, member: &Member) {
        let here = SECTIONS
            .iter()
            .filter(|other| other.path == section)
            .flat_map(|other| other.keys);
        let nested = SECTIONS
            .iter()
            .filter(|other| other.parent().unwrap_or("") == section)
            .map(Section::name);
        let names = here
            .map(|key| key.name)
            .chain(nested)
            .chain(OTHER.iter().copied().filter(|_| section.is_empty()));
        let elsewhere = SECTIONS.iter().find_map(|other| {
            let key = other
                .keys
                .iter()
                .find(|key| key.name.eq_ignore_ascii_case(&member.name))?;
            Some(format!("{}.{}", other.path, key.name))
        });
        let advice = if self.faults.len() > SUGGESTIONS_MAX {
            String::new()
        } else if let Some(path) = elsewhere {
            format!("it belongs to {path}")
        } else if let Some(name) = nearest(&member.name, names) {
            format!("nearest known: {name}")
        } else {
            let all = SECTIONS
                .iter()
                .flat_map(|other| other.keys.iter().map(move |key| (other.path, key.name)));
            match nearest(&member.name, all.clone().map(|(_, name)| name)) {
                Some(name) => {
                    let owner = all
                        .clone()
                        .find(|(_, other)| *other == name)
                        .map_or("", |(path, _)| path);
                    format!("nearest known: {owner}.{name}")
                }
                None => "docs/config.md lists every key".to_owned(),
            }
        };
        let name = shown(&member.name);
        let path = if section.is_empty() {
            name
        } else {
            format!("{section}.{name}")
        };
        let what = if section.is_empty() {
            "unknown section"
        } else {
            "unknown key"
        };
        self.faults.push(Fault {
            path,
            at: Some(member.at),
            what: what.to_owned(),
            advice,
        });
    }
}

/// A Rust type that a value of the file becomes.
pub(super) trait Take: Default {
    /// The value, or None and at least one fault.
    fn take(node: &Node, path: &str, kind: &Kind, faults: &mut Vec<Fault>) -> Option<Self>;
}

impl Take for i64 {
    fn take(node: &Node, path: &str, kind: &Kind, faults: &mut Vec<Fault>) -> Option<Self> {
        let (min, max) = match kind {
            Kind::Whole { min, max } | Kind::WholeList { min, max } => (*min, *max),
            _ => (Self::MIN, Self::MAX),
        };
        let range = if min == max {
            format!("exactly {min}")
        } else {
            format!("whole number, {min} to {max}")
        };
        let wrong = |what: String, advice: String| Fault {
            path: path.to_owned(),
            at: Some(node.at),
            what,
            advice,
        };
        let fault = match &node.value {
            Value::Number(text) => match whole(text) {
                Some(number) if (min..=max).contains(&number) => return Some(number),
                Some(_) => wrong(format!("{} is out of range", shown(text)), range),
                None => wrong(
                    format!("{} is not a whole number in range", shown(text)),
                    range,
                ),
            },
            Value::Text(text) if whole(text.trim()).is_some() => wrong(
                format!("the number {} is written as text", quoted(text)),
                format!("write {} without quotes", shown(text.trim())),
            ),
            Value::Bool(on) if (min, max) == (0, 1) => wrong(
                format!("{on} found"),
                format!("write {} instead", Self::from(*on)),
            ),
            other => wrong(format!("{} found", describe(other)), range),
        };
        faults.push(fault);
        None
    }
}

impl Take for bool {
    fn take(node: &Node, path: &str, _: &Kind, faults: &mut Vec<Fault>) -> Option<Self> {
        if let Value::Bool(on) = node.value {
            return Some(on);
        }
        let what = format!("{} found", describe(&node.value));
        faults.push(Fault {
            path: path.to_owned(),
            at: Some(node.at),
            what,
            advice: "true or false".to_owned(),
        });
        None
    }
}

impl Take for String {
    fn take(node: &Node, path: &str, kind: &Kind, faults: &mut Vec<Fault>) -> Option<Self> {
        let words = match kind {
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Text(form) | Kind::TextList(form) => form.words.to_owned(),
            _ => "text".to_owned(),
        };
        let what = match (&node.value, kind) {
            (Value::Text(text), Kind::Choice(choices)) => {
                if let Some(choice) = choices
                    .iter()
                    .find(|choice| choice.eq_ignore_ascii_case(text))
                {
                    return Some((*choice).to_owned());
                }
                format!("{} is not known", quoted(text))
            }
            (Value::Text(text), _) => return Some(text.clone()),
            (Value::Number(number), _) => {
                format!("the number {} found, write it in quotes", shown(number))
            }
            (other, _) => format!("{} found", describe(other)),
        };
        faults.push(Fault {
            path: path.to_owned(),
            at: Some(node.at),
            what,
            advice: words,
        });
        None
    }
}

impl<T: Take> Take for Vec<Field<T>> {
    fn take(node: &Node, path: &str, kind: &Kind, faults: &mut Vec<Fault>) -> Option<Self> {
        let Value::List(nodes) = &node.value else {
            let what = format!("{} found", describe(&node.value));
            faults.push(Fault {
                path: path.to_owned(),
                at: Some(node.at),
                what,
                advice: "a list: [ ... ]".to_owned(),
            });
            return None;
        };
        let before = faults.len();
        let mut fields = Self::new();
        for (index, node) in nodes.iter().enumerate() {
            let path = format!("{path}[{index}]");
            if let Some(value) = T::take(node, &path, kind, faults) {
                fields.push(Field {
                    value,
                    at: Some(node.at),
                    path,
                });
            }
        }
        (faults.len() == before).then_some(fields)
    }
}

/// The default of a key; a test holds that every default is valid JSON and in range.
fn default_of<T: Take>(key: &Key, path: &str) -> T {
    let text = format!("{{\"k\": {}}}", key.default);
    let parsed = parse::parse(&text).ok().map(|(node, _)| node.value);
    let Some(Value::Object(members)) = parsed else {
        return T::default();
    };
    let node = members.first().map(|member| &member.node);
    node.and_then(|node| T::take(node, path, &key.kind, &mut Vec::new()))
        .unwrap_or_default()
}

/// A JSON number that is whole: `1`, `1.0` and `1e0` are the same to K-NET too.
fn whole(text: &str) -> Option<i64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let number: f64 = text.parse().ok()?;
    let limit = 9_007_199_254_740_992.0;
    if number.fract() != 0.0
        || number.abs() > limit
        || text.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return None;
    }
    format!("{number:.0}").parse().ok()
}

/// A text as it is shown in a fault.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

/// A value of the wrong type, in words.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(on) => on.to_string(),
        Value::Number(number) => format!("the number {}", shown(number)),
        Value::Text(text) => format!("the text {}", quoted(text)),
        Value::List(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw::PayloadRule;

    fn check<T: Take>(key: &Key) {
        let text = format!("{{\"k\": {}}}", key.default);
        let (node, _) = parse::parse(&text).expect(key.name);
        let Value::Object(members) = node.value else {
            panic!("{}", key.name)
        };
        let mut faults = Vec::new();
        let taken = T::take(&members[0].node, key.name, &key.kind, &mut faults);
        assert!(
            taken.is_some() && faults.is_empty(),
            "{}: {faults:?}",
            key.name
        );
    }

    #[test]
    fn every_default_is_allowed_by_its_own_key() {
        for key in SECTIONS.iter().flat_map(|section| section.keys) {
            match key.kind {
                Kind::Whole { .. } => check::<i64>(key),
                Kind::Switch => check::<bool>(key),
                Kind::Choice(_) | Kind::Text(_) => check::<String>(key),
                Kind::TextList(_) => check::<Vec<Field<String>>>(key),
                Kind::WholeList { .. } => check::<Vec<Field<i64>>>(key),
                Kind::Objects(_) => check::<Vec<Field<PayloadRule>>>(key),
            }
        }
    }

    #[test]
    fn whole_numbers_in_every_spelling() {
        assert_eq!(whole("1500"), Some(1500));
        assert_eq!(whole("1.0"), Some(1));
        assert_eq!(whole("1e0"), Some(1));
        assert_eq!(whole("-0"), Some(0));
        assert_eq!(whole("1.5"), None);
        assert_eq!(whole("1e300"), None);
        assert_eq!(whole("inf"), None);
        assert_eq!(whole(""), None);
    }
}
