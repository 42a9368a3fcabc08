//! A JSON value that knows where everything in it stands.

use super::error::Position;

/// A value and where it begins.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// The first character of the value.
    pub at: Position,
    /// The value.
    pub value: Value,
}

/// A JSON value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number, as it was written.
    Number(String),
    /// A string, escapes resolved.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// An object, in the order of the file, without the duplicates.
    Object(Vec<Member>),
}

/// One key of an object.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// The key as it was written.
    pub name: String,
    /// Where the key stands.
    pub at: Position,
    /// Its value.
    pub node: Node,
}
