//! JSON text as people really write it, into a tree that knows where everything stands.
//!
//! RFC 8259, and on top what every K-NET guide shows: `//`, `/* */` and `#` remarks, trailing commas, a
//! full-width comma, a byte order mark, CRLF. A general JSON crate has neither remarks nor positions nor
//! duplicate keys, and those are what an operator needs to be told; it decodes single texts and numbers.

use super::error::{Fault, Position, shown};
pub use super::tree::{Member, Node, Value};

/// Objects and lists inside each other at most; bounds the recursion.
const DEPTH_MAX: usize = 32;

/// Reads a whole file; the faults found on the way (duplicate keys) do not end the parse.
///
/// # Errors
/// All faults up to and including the first one that makes the rest unreadable.
pub fn parse(text: &str) -> Result<(Node, Vec<Fault>), Vec<Fault>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let start = Position { line: 1, column: 1 };
    let mut parser = Parser {
        rest: text,
        at: start,
        path: Vec::new(),
        faults: Vec::new(),
    };
    match parser.document() {
        Ok(node) => Ok((node, parser.faults)),
        Err(fault) => {
            parser.faults.push(fault);
            Err(parser.faults)
        }
    }
}

struct Parser<'a> {
    rest: &'a str,
    at: Position,
    path: Vec<String>,
    faults: Vec<Fault>,
}

impl Parser<'_> {
    fn document(&mut self) -> Result<Node, Fault> {
        self.space()?;
        if self.peek().is_none() {
            return Err(self.fault("the file is empty", "smallest: {\"interface\": {\"bdf_nums\": [\"0000:04:00.0\"], \"ip\": \"192.168.1.58\"}}"));
        }
        if self.peek() != Some('{') {
            return Err(self.unexpected("'{' around the whole file"));
        }
        let node = self.value()?;
        self.space()?;
        if self.peek().is_some() {
            return Err(self.unexpected("the end of the file, as all brackets are closed"));
        }
        Ok(node)
    }

    fn value(&mut self) -> Result<Node, Fault> {
        let at = self.at;
        let value = match self.peek() {
            Some('{') => self.nested(Self::object)?,
            Some('[') => self.nested(Self::list)?,
            Some('"') => Value::Text(self.string()?),
            Some('-' | '0'..='9') => Value::Number(self.number()?),
            Some('a'..='z' | 'A'..='Z') => self.word()?,
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Node { at, value })
    }

    fn nested(&mut self, read: fn(&mut Self) -> Result<Value, Fault>) -> Result<Value, Fault> {
        if self.path.len() >= DEPTH_MAX {
            return Err(self.fault("too many brackets inside each other", "at most 32"));
        }
        self.next();
        read(self)
    }

    fn object(&mut self) -> Result<Value, Fault> {
        let mut members: Vec<Member> = Vec::new();
        while self.more('}', members.is_empty())? {
            let at = self.at;
            if self.peek() != Some('"') {
                return Err(self.unexpected("a key in double quotes or '}'"));
            }
            let name = self.string()?;
            self.path.push(shown(&name));
            self.space()?;
            if self.peek() != Some(':') {
                return Err(self.unexpected("':' after the key"));
            }
            self.next();
            self.space()?;
            let node = self.value()?;
            let first = members
                .iter()
                .find(|member| member.name.eq_ignore_ascii_case(&name));
            if let Some(first) = first {
                let what = format!("written twice, first at {}", first.at);
                let path = self.path.join(".").replace(".[", "[");
                self.faults.push(Fault {
                    path,
                    at: Some(at),
                    what,
                    advice: "keep one".to_owned(),
                });
            } else {
                members.push(Member { name, at, node });
            }
            self.path.pop();
        }
        Ok(Value::Object(members))
    }

    fn list(&mut self) -> Result<Value, Fault> {
        let mut nodes = Vec::new();
        while self.more(']', nodes.is_empty())? {
            self.path.push(format!("[{}]", nodes.len()));
            nodes.push(self.value()?);
            self.path.pop();
        }
        Ok(Value::List(nodes))
    }

    /// Steps over the comma before the next entry, or over the closing bracket (then false).
    fn more(&mut self, close: char, first: bool) -> Result<bool, Fault> {
        self.space()?;
        if !first && self.peek() != Some(close) {
            if !matches!(self.peek(), Some(',' | '\u{ff0c}')) {
                return Err(self.unexpected(&format!("',' or '{close}'")));
            }
            self.next();
            self.space()?;
        }
        if self.peek() == Some(close) {
            self.next();
            return Ok(false);
        }
        Ok(true)
    }

    /// A text; its escapes are those of RFC 8259 section 7, and left to the JSON crate.
    fn string(&mut self) -> Result<String, Fault> {
        let open = self.fault(
            "this text has no closing quote on its line",
            "write the missing '\"'",
        );
        let mut raw = String::from('"');
        self.next();
        loop {
            match self.next() {
                None | Some('\n' | '\r') => return Err(open),
                Some('\\') => {
                    raw.push('\\');
                    raw.extend(self.next());
                }
                Some(c) => {
                    raw.push(c);
                    if c == '"' {
                        break;
                    }
                }
            }
        }
        if let Some(c) = raw.chars().find(|c| c.is_ascii_control()) {
            let what = format!("control character U+{:04X} in this text", u32::from(c));
            return Err(Fault {
                what,
                advice: "delete it".to_owned(),
                ..open
            });
        }
        match serde_json::from_str::<String>(&raw) {
            Ok(text) if !text.contains('\0') => Ok(text),
            _ => {
                let what = format!("bad escape in the text {}", shown(&raw));
                Err(Fault {
                    what,
                    advice: "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX".to_owned(),
                    ..open
                })
            }
        }
    }

    /// A number by the grammar of RFC 8259 section 6, kept as it was written.
    fn number(&mut self) -> Result<String, Fault> {
        let fault = self.fault("", "digits, for example 1500, without separators");
        let mut text = String::new();
        while let Some(c) = self
            .peek()
            .filter(|c| c.is_ascii_alphanumeric() || "+-._".contains(*c))
        {
            text.push(c);
            self.next();
        }
        match serde_json::from_str::<f64>(&text) {
            Ok(_) => Ok(text),
            Err(_) => Err(Fault {
                what: format!("'{}' is not a number", shown(&text)),
                ..fault
            }),
        }
    }

    fn word(&mut self) -> Result<Value, Fault> {
        let fault = self.unexpected("a value (text needs double quotes)");
        let mut word = String::new();
        while let Some(c) = self
            .peek()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
        {
            word.push(c);
            self.next();
        }
        match word.as_str() {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            _ => Err(Fault {
                what: format!("'{}' found", shown(&word)),
                ..fault
            }),
        }
    }

    /// Skips white space and remarks.
    fn space(&mut self) -> Result<(), Fault> {
        loop {
            if self.rest.starts_with("//") || self.peek() == Some('#') {
                while self.peek().is_some_and(|c| c != '\n') {
                    self.next();
                }
            } else if self.rest.starts_with("/*") {
                let fault = self.fault("this remark is never closed", "write '*/'");
                let end = self
                    .rest
                    .get(2..)
                    .and_then(|rest| rest.find("*/"))
                    .ok_or(fault)?;
                let left = self.rest.len().saturating_sub(end + 4);
                while self.rest.len() > left {
                    self.next();
                }
            } else if self
                .peek()
                .is_some_and(|c| c.is_ascii_whitespace() || c == '\u{3000}' || c == '\u{a0}')
            {
                self.next();
            } else {
                return Ok(());
            }
        }
    }

    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = self.rest.get(c.len_utf8()..).unwrap_or("");
        if c == '\n' {
            self.at = Position {
                line: self.at.line.saturating_add(1),
                column: 1,
            };
        } else {
            self.at.column = self.at.column.saturating_add(1);
        }
        Some(c)
    }

    fn unexpected(&self, wanted: &str) -> Fault {
        let found = match self.peek() {
            None => "the file ends".to_owned(),
            Some('.') if self.rest.starts_with("...") => "'...' of a guide found".to_owned(),
            Some(c) if c.is_ascii_graphic() => format!("'{c}' found"),
            Some(c) => format!("character U+{:04X} found", u32::from(c)),
        };
        self.fault(&found, &format!("wanted: {wanted}"))
    }

    fn fault(&self, what: &str, advice: &str) -> Fault {
        let path = self.path.join(".").replace(".[", "[");
        Fault {
            path,
            at: Some(self.at),
            what: what.to_owned(),
            advice: advice.to_owned(),
        }
    }
}
