//! Terms joined by `and` (`&&`, `&`), `or` (`||`, `|`) and `not` (`!`) with parentheses: what pcap-filter(7) and ss(8) have in
//! common. `not` binds tightest, the others equally and from left to right, as in both.

/// Words of an expression at most.
const WORDS_MAX: usize = 256;
/// Parentheses and negations within each other at most, so that the work of one answer is bounded.
const DEPTH_MAX: usize = 32;
/// What begins or ends a word without a blank beside it, the longer ones first.
const SIGNS: [&str; 14] = [
    "&&", "||", "!=", "==", "<=", ">=", "(", ")", "!", "&", "|", "<", ">", "=",
];

/// A term of a language.
pub trait Term: Sized {
    /// Whether terms that stand beside each other, without a word between them, must all hold.
    const SIDE_BY_SIDE: bool;

    /// Reads one term, which may be made of several, off the front of the words.
    ///
    /// # Errors
    /// A line that says what is wrong.
    fn parse(words: &mut Words) -> Result<Expression<Self>, String>;
}

/// A checked expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expression<T> {
    /// A term.
    Is(T),
    /// The other must not hold.
    Not(Box<Self>),
    /// Both must hold.
    And(Box<Self>, Box<Self>),
    /// One at least must hold.
    Or(Box<Self>, Box<Self>),
}

/// The words that are still to be read.
#[derive(Debug)]
pub struct Words {
    /// The next one stands last.
    left: Vec<String>,
    depth: usize,
}

impl Words {
    /// Splits a text into words.
    ///
    /// # Errors
    /// There are too many.
    pub fn of(text: &str) -> Result<Self, String> {
        let mut left = Vec::new();
        for piece in text.split_whitespace() {
            let mut rest = piece;
            while !rest.is_empty() {
                let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign));
                let bytes = sign.map_or_else(
                    || rest.find(['(', ')', '!', '&', '|', '<', '>', '=']),
                    |sign| Some(sign.len()),
                );
                let (word, after) = rest.split_at(bytes.unwrap_or(rest.len()));
                left.push(word.to_owned());
                rest = after;
            }
        }
        if left.len() > WORDS_MAX {
            return Err(format!("the filter has more than {WORDS_MAX} words"));
        }
        left.reverse();
        Ok(Self { left, depth: 0 })
    }

    /// The word that is next.
    #[must_use]
    pub fn first(&self) -> Option<&str> {
        self.left.last().map(String::as_str)
    }

    /// Takes the next word off.
    pub fn next(&mut self) -> Option<String> {
        self.left.pop()
    }

    /// Takes the next word off if it is one of these.
    pub fn take(&mut self, wanted: &[&str]) -> bool {
        let is = self.first().is_some_and(|word| wanted.contains(&word));
        if is {
            self.left.pop();
        }
        is
    }

    /// Takes the value off that follows `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn value(&mut self, name: &str) -> Result<String, String> {
        self.next().ok_or_else(|| format!("{name} wants a value"))
    }
}

impl<T: Term> Expression<T> {
    /// Reads all words; none at all is no expression.
    ///
    /// # Errors
    /// A line that says what is wrong.
    pub fn parse(words: &mut Words) -> Result<Option<Self>, String> {
        if words.first().is_none() {
            return Ok(None);
        }
        let expression = Self::chain(words)?;
        match words.first() {
            None => Ok(Some(expression)),
            Some(word) => Err(format!("the filter goes on where it should end: {word}")),
        }
    }

    fn chain(words: &mut Words) -> Result<Self, String> {
        let mut chain = Self::factor(words)?;
        loop {
            if words.take(&["or", "||", "|"]) {
                chain = Self::Or(Box::new(chain), Box::new(Self::factor(words)?));
            } else if words.take(&["and", "&&", "&"])
                || (T::SIDE_BY_SIDE && words.first().is_some_and(|word| word != ")"))
            {
                chain = Self::And(Box::new(chain), Box::new(Self::factor(words)?));
            } else {
                return Ok(chain);
            }
        }
    }

    fn factor(words: &mut Words) -> Result<Self, String> {
        words.depth += 1;
        if words.depth > DEPTH_MAX {
            return Err(format!("the filter is nested deeper than {DEPTH_MAX}"));
        }
        let factor = if words.take(&["not", "!"]) {
            Self::Not(Box::new(Self::factor(words)?))
        } else if words.take(&["("]) {
            let inner = Self::chain(words)?;
            if !words.take(&[")"]) {
                return Err("a parenthesis is not closed".to_owned());
            }
            inner
        } else if words.first().is_none() {
            return Err("the filter ends where a word should follow".to_owned());
        } else {
            T::parse(words)?
        };
        words.depth -= 1;
        Ok(factor)
    }
}

impl<T> Expression<T> {
    /// Whether it holds where `is` says so of each term.
    pub fn holds(&self, is: &impl Fn(&T) -> bool) -> bool {
        match self {
            Self::Is(term) => is(term),
            Self::Not(other) => !other.holds(is),
            Self::And(one, other) => one.holds(is) && other.holds(is),
            Self::Or(one, other) => one.holds(is) || other.holds(is),
        }
    }

    /// Whether one of its terms is as `is` says.
    pub fn names(&self, is: &impl Fn(&T) -> bool) -> bool {
        match self {
            Self::Is(term) => is(term),
            Self::Not(other) => other.names(is),
            Self::And(one, other) | Self::Or(one, other) => one.names(is) || other.names(is),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter.
    #[derive(Debug)]
    struct Letter(String);

    impl Term for Letter {
        const SIDE_BY_SIDE: bool = true;

        fn parse(words: &mut Words) -> Result<Expression<Self>, String> {
            let word = words.value("a letter")?;
            if word.len() != 1 || !word.starts_with(char::is_alphabetic) {
                return Err(format!("{word} is no letter"));
            }
            Ok(Expression::Is(Self(word)))
        }
    }

    fn parse(text: &str) -> Result<Option<Expression<Letter>>, String> {
        Expression::parse(&mut Words::of(text)?)
    }

    #[track_caller]
    fn holds(text: &str, true_letters: &str) -> bool {
        let expression = parse(text).unwrap().unwrap();
        expression.holds(&|Letter(letter)| true_letters.contains(letter.as_str()))
    }

    #[test]
    fn words_join_from_left_to_right() {
        for (text, letters, yes) in [
            ("a", "a", true),
            ("a b", "a", false),
            ("a b", "ab", true),
            ("a or b and c", "a", false),
            ("a or (b and c)", "a", true),
            ("a||b&&c", "bc", true),
            ("a|b&c", "a", false),
            ("not a b", "b", true),
            ("not (a b)", "b", true),
            ("!a or b", "", true),
            ("!(a)b", "b", true),
            ("! ! a", "a", true),
            ("(a or b) (c or d)", "ad", true),
            ("(a or b) (c or d)", "ab", false),
        ] {
            assert_eq!(holds(text, letters), yes, "{text} where {letters}");
        }
        assert!(parse(" ").unwrap().is_none());
        assert!(
            parse("a not (b or c)")
                .unwrap()
                .unwrap()
                .names(&|letter| letter.0 == "c")
        );
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for bad in [
            "and", "or a", "a and", "a or", "not", "!", "(a", "a)", "()", "a (b", "hello", "(", ")",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let nested = format!("{}a{}", "(".repeat(40), ")".repeat(40));
        assert!(parse(&nested).unwrap_err().contains("nested"));
        assert!(parse(&"!".repeat(100)).unwrap_err().contains("nested"));
        assert!(parse(&"a ".repeat(300)).unwrap_err().contains("words"));
    }
}
