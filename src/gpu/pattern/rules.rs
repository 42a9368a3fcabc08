//! The rules file: one literal a line.
//!
//! ```text
//! # a remark
//! plain text to the end of the line
//! "quoted, with escapes: \" \\ \n \r \t \x00"
//! i"as above, in any letter case (ASCII)"
//! ```

/// A literal to look for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rule {
    /// Never empty.
    pub(crate) bytes: Vec<u8>,
    /// Letters match in either case.
    pub(crate) any_case: bool,
}

/// The literals of a file, in its order; at least one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rules(pub(crate) Vec<Rule>);

/// Literals of one file at most.
const RULES_MAX: usize = 100_000;
/// Bytes of one literal at most.
const RULE_BYTES_MAX: usize = 1_024;
/// Faults told at most.
const FAULTS_MAX: usize = 20;

/// Reads a rules file.
///
/// # Errors
/// Every fault with its line, at most 20 of them.
pub(crate) fn parse(file: &[u8]) -> Result<Rules, Vec<String>> {
    let mut rules = Vec::new();
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(file.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        match literal(line) {
            Ok(rule) if rules.len() < RULES_MAX => rules.push(rule),
            Ok(_) => {
                faults.push(format!("line {number}: more than {RULES_MAX} patterns"));
                break;
            }
            Err(fault) => faults.push(format!("line {number}: {fault}")),
        }
        if faults.len() == FAULTS_MAX {
            faults.push("and perhaps more".to_owned());
            break;
        }
    }
    if rules.is_empty() && faults.is_empty() {
        faults.push("no pattern in it".to_owned());
    }
    if faults.is_empty() {
        Ok(Rules(rules))
    } else {
        Err(faults)
    }
}

fn literal(line: &[u8]) -> Result<Rule, String> {
    let (any_case, rest) = match line {
        [b'i', b'"', ..] => (true, line.get(1..).unwrap_or(&[])),
        _ => (false, line),
    };
    let bytes = match rest {
        [b'"', inside @ ..] => unescape(inside)?,
        plain => plain.to_vec(),
    };
    match bytes.len() {
        0 => Err("an empty pattern is found everywhere".to_owned()),
        length if length > RULE_BYTES_MAX => {
            Err(format!("{length} bytes, at most {RULE_BYTES_MAX}"))
        }
        _ => Ok(Rule { bytes, any_case }),
    }
}

/// The bytes up to the closing quote, which must be the last byte.
fn unescape(inside: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = inside.iter().copied();
    loop {
        match rest.next() {
            None => return Err("the closing quote is missing".to_owned()),
            Some(b'"') if rest.len() == 0 => return Ok(bytes),
            Some(b'"') => return Err("text behind the closing quote".to_owned()),
            Some(b'\\') => bytes.push(escape(&mut rest)?),
            Some(byte) => bytes.push(byte),
        }
    }
}

fn escape(rest: &mut impl Iterator<Item = u8>) -> Result<u8, String> {
    match rest.next() {
        Some(b'n') => Ok(b'\n'),
        Some(b'r') => Ok(b'\r'),
        Some(b't') => Ok(b'\t'),
        Some(b'0') => Ok(0),
        Some(byte @ (b'"' | b'\\')) => Ok(byte),
        Some(b'x') => {
            let digit = |byte: Option<u8>| {
                let digit = char::from(byte?).to_digit(16)?;
                u8::try_from(digit).ok()
            };
            match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => Ok(high << 4 | low),
                _ => Err("\\x needs two hexadecimal digits".to_owned()),
            }
        }
        _ => Err("known escapes: \\n \\r \\t \\0 \\\" \\\\ \\xNN".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<Rule, String> {
        parse(line.as_bytes())
            .map(|rules| rules.0[0].clone())
            .map_err(|faults| faults.join("; "))
    }

    #[test]
    fn every_form_of_a_line() {
        let rule = |bytes: &[u8], any_case| Rule {
            bytes: bytes.to_vec(),
            any_case,
        };
        assert_eq!(one("plain text\r\n"), Ok(rule(b"plain text", false)));
        assert_eq!(one("\"a\\x00\\\"\\\\\\n\""), Ok(rule(b"a\0\"\\\n", false)));
        assert_eq!(one("i\"Ab\""), Ok(rule(b"Ab", true)));
        assert_eq!(one("index"), Ok(rule(b"index", false)));
        assert_eq!(one("# remark\n\n x "), Ok(rule(b"x", false)));
    }

    #[test]
    fn faults_name_their_lines() {
        let faults = parse(b"ok\n\"open\n\"a\"b\n\"\"\n\"\\q\"\n\"\\x1\"\n").unwrap_err();
        assert_eq!(faults.len(), 5, "{faults:?}");
        assert!(faults[0].starts_with("line 2: the closing quote"));
        assert!(faults[2].starts_with("line 4: an empty pattern"));
        assert_eq!(parse(b"# nothing\n").unwrap_err(), ["no pattern in it"]);
        assert!(
            one(&"x".repeat(2_000))
                .unwrap_err()
                .contains("at most 1024")
        );
    }

    #[test]
    fn any_bytes_end_in_rules_or_faults() {
        let mut word = 99_u64;
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    b"\"\\xin0#\n a\xff"[usize::try_from(word >> 40).unwrap() % 11]
                })
                .collect();
            match parse(&bytes) {
                Ok(rules) => assert!(rules.0.iter().all(|rule| !rule.bytes.is_empty())),
                Err(faults) => assert!(!faults.is_empty()),
            }
        }
    }
}
