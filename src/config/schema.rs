//! The JSON schema, made from the table of keys.

use serde_json::{Map, Value, json};

use super::key::{Effect, Key, Kind, Section};
use super::raw::SECTIONS;

/// The schema of a config file (JSON Schema draft 2020-12), with a final newline.
///
/// It knows the exact spellings only, and plain JSON; the loader takes any letter case, remarks and trailing
/// commas too.
#[must_use]
pub fn schema() -> String {
    let mut properties = Map::new();
    for section in SECTIONS.iter().filter(|section| section.parent().is_none()) {
        properties.insert(section.path.to_owned(), object(section));
    }
    properties.insert(
        "version".to_owned(),
        json!({ "description": "Ignored, as K-NET does." }),
    );
    properties.insert(
        "$schema".to_owned(),
        json!({ "type": "string", "description": "Ignored; for editors." }),
    );
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "knet_comm.conf",
        "description": "Configuration of knet. Made from the code; do not edit.",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    format!("{schema:#}\n")
}

fn object(section: &Section) -> Value {
    let mut properties = Map::new();
    for key in section.keys {
        properties.insert(key.name.to_owned(), property(key));
    }
    for nested in SECTIONS
        .iter()
        .filter(|nested| nested.parent() == Some(section.path))
    {
        properties.insert(nested.name().to_owned(), object(nested));
    }
    json!({ "type": "object", "description": section.about, "properties": properties, "additionalProperties": false })
}

fn property(key: &Key) -> Value {
    let mut property = match key.kind {
        Kind::Whole { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Switch => json!({ "type": "boolean" }),
        Kind::Choice(words) => json!({ "type": "string", "enum": words }),
        Kind::Text(form) => json!({ "type": "string", "pattern": form.pattern }),
        Kind::TextList(form) => {
            json!({ "type": "array", "items": { "type": "string", "pattern": form.pattern } })
        }
        Kind::Objects(section) => json!({ "type": "array", "items": object(section) }),
        Kind::WholeList { min, max } => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": min, "maximum": max } })
        }
    };
    let about = match key.effect {
        Effect::Honoured => key.about.to_owned(),
        Effect::NoMeaning(why) => format!("{} No effect: {why}.", key.about),
        Effect::NotServed(instead) => {
            format!("{} Not served by this version: {instead}.", key.about)
        }
    };
    let default: Value = serde_json::from_str(key.default).unwrap_or(Value::Null);
    if let Some(map) = property.as_object_mut() {
        map.insert("description".to_owned(), Value::String(about));
        map.insert("default".to_owned(), default);
    }
    property
}
