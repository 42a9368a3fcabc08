//! The GPU kernels as the driver takes them, and a user's own.

/// Every built-in kernel, both ways to run it; made by `scripts/ptx.py`.
pub const KERNELS: &str = include_str!("cuda/knet.ptx");

/// The kernel `user`, which lacks a function.
const USER: &str = include_str!("cuda/knet_user.ptx");
/// What the function is called there.
const USER_FUNCTION: &str = "knet_user_function";
/// Bytes of a user's PTX at most.
pub(super) const USER_BYTES_MAX: u64 = 4 << 20;
/// What the function takes: packet, result, lane, parameters.
const USER_PARAMS: &str = ".b64 .b64 .b32 .b64";

/// A user's PTX that has the function asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserPtx {
    /// The version of the language: which drivers take it.
    pub version: (u32, u32),
    /// The least compute capability, times ten: 80 for `sm_80`.
    pub target: u32,
}

impl UserPtx {
    /// Looks at `text` for a `function` that the kernel `user` can call.
    ///
    /// # Errors
    /// One line: what is missing.
    pub fn examine(text: &[u8], function: &str) -> Result<Self, String> {
        if text.len() as u64 > USER_BYTES_MAX {
            return Err(format!("{} bytes, at most {USER_BYTES_MAX}", text.len()));
        }
        let text = core::str::from_utf8(text)
            .ok()
            .filter(|text| !text.contains('\0'))
            .ok_or("not PTX: it is no text (a cubin or fatbin is of no use here)")?;
        let tokens = tokens(text);
        let behind = |word: &str| {
            let at = tokens.iter().position(|token| token == word)?;
            tokens.get(at + 1).map(String::as_str)
        };
        let version = behind(".version")
            .and_then(|version| version.split_once('.'))
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .ok_or("not PTX: it has no .version")?;
        let target = behind(".target")
            .and_then(|target| target.strip_prefix("sm_"))
            .and_then(|target| target.trim_end_matches(char::is_alphabetic).parse().ok())
            .ok_or("it has no .target sm_NN")?;
        if behind(".address_size") != Some("64") {
            return Err("its .address_size is not 64".to_owned());
        }
        let name = |(at, token): (usize, &String)| {
            (token == ".func")
                .then(|| Function::parse(tokens.get(at + 1..)?))
                .flatten()
        };
        let functions: Vec<Function> = tokens.iter().enumerate().filter_map(name).collect();
        let Some(found) = functions.iter().find(|known| known.name == function) else {
            let names: Vec<&str> = functions.iter().map(|known| known.name.as_str()).collect();
            return Err(match names.as_slice() {
                [] => format!("it has no function {function:?}, nor any other"),
                names => format!("it has no function {function:?}, but {}", names.join(", ")),
            });
        };
        if (found.returns.as_str(), found.params.as_str()) != (".b32", USER_PARAMS) {
            return Err(format!(
                "{function} takes ({}) and returns ({}), but is to take ({USER_PARAMS}) and to return (.b32)",
                found.params, found.returns
            ));
        }
        if !found.has_body {
            return Err(format!("{function} is declared, but has no body"));
        }
        Ok(Self { version, target })
    }
}

/// The kernel `user` that calls `function`, to be linked with what has it.
#[must_use]
pub fn user_kernel(function: &str) -> String {
    USER.replace(USER_FUNCTION, function)
}

/// A function as PTX declares it; types of parameters only.
struct Function {
    name: String,
    returns: String,
    params: String,
    has_body: bool,
}

impl Function {
    /// Reads what stands behind `.func`: `(returns) name (params)` and a body.
    fn parse(tokens: &[String]) -> Option<Self> {
        let (returns, rest) = match tokens.first()?.as_str() {
            "(" => list(tokens)?,
            _ => (String::new(), tokens),
        };
        let (name, rest) = rest.split_first()?;
        let (params, rest) = match rest.first().map(String::as_str) {
            Some("(") => list(rest)?,
            _ => (String::new(), rest),
        };
        let end = rest
            .iter()
            .find(|token| ["{", ";"].contains(&token.as_str()));
        Some(Self {
            name: name.clone(),
            returns,
            params,
            has_body: end.is_some_and(|end| end == "{"),
        })
    }
}

/// The types in a list in parentheses, and what is behind it.
fn list(tokens: &[String]) -> Option<(String, &[String])> {
    let end = tokens.iter().position(|token| token == ")")?;
    let types: Vec<&str> = tokens
        .get(..end)?
        .iter()
        .map(String::as_str)
        .filter(|token| token.starts_with('.') && !matches!(*token, ".param" | ".reg" | ".align"))
        .collect();
    Some((types.join(" "), tokens.get(end + 1..)?))
}

/// Words and single marks, without remarks.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    let mut rest = text.chars().peekable();
    let mut end = |word: &mut String| {
        if !word.is_empty() {
            tokens.push(core::mem::take(word));
        }
    };
    while let Some(next) = rest.next() {
        match (next, rest.peek()) {
            ('/', Some('/')) => {
                end(&mut word);
                rest.by_ref().find(|after| *after == '\n');
            }
            ('/', Some('*')) => {
                end(&mut word);
                let mut before = ' ';
                rest.next();
                for after in rest.by_ref() {
                    if (before, after) == ('*', '/') {
                        break;
                    }
                    before = after;
                }
            }
            (blank, _) if blank.is_whitespace() => end(&mut word),
            (letter, _) if letter.is_alphanumeric() || "._$%".contains(letter) => word.push(letter),
            (mark, _) => {
                end(&mut word);
                word.push(mark);
                end(&mut word);
            }
        }
    }
    end(&mut word);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = include_str!("../../tests/fixtures/user.ptx");

    fn fault(text: &str, function: &str) -> String {
        UserPtx::examine(text.as_bytes(), function).unwrap_err()
    }

    #[test]
    fn what_the_compiler_makes_of_the_example_is_taken() {
        let good = UserPtx {
            version: (8, 0),
            target: 80,
        };
        assert_eq!(UserPtx::examine(GOOD.as_bytes(), "count_zeros"), Ok(good));
    }

    #[test]
    fn each_fault_of_a_users_ptx_is_told() {
        assert_eq!(
            fault(GOOD, "other"),
            "it has no function \"other\", but count_zeros"
        );
        assert!(fault(&GOOD.replace(".version", ".ver"), "x").contains("no .version"));
        assert!(fault(&GOOD.replace("sm_80", "texmode"), "x").contains("no .target"));
        assert!(fault(&GOOD.replace("_size 64", "_size 32"), "x").contains("not 64"));
        let three = GOOD.replacen(".param .b64 count_zeros_param_0,", "", 1);
        assert!(fault(&three, "count_zeros").contains("takes (.b64 .b32 .b64)"));
        let declared = ".version 8.0\n.target sm_80\n.address_size 64 // 64\n/* { */ .extern .func (.param .b32 r) f(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d);";
        assert!(fault(declared, "f").contains("no body"));
        assert!(
            fault(".version 8.0 .target sm_80 .address_size 64", "f").contains("nor any other")
        );
        let cubin = UserPtx::examine(b"\x7fELF\xff\xfe", "f").unwrap_err();
        assert!(cubin.contains("cubin"));
    }

    #[test]
    fn any_bytes_end_in_a_word_about_them() {
        let mut word = 5_u64;
        for _ in 0..500 {
            let mut text = GOOD.as_bytes().to_vec();
            for _ in 0..40 {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let place = usize::try_from(word >> 33).unwrap() % text.len();
                text[place] = b"(){}./*; \n\x00\xff"[usize::try_from(word >> 20).unwrap() % 12];
            }
            let _ = UserPtx::examine(&text, "count_zeros");
        }
    }

    #[test]
    fn the_shipped_files_have_every_entry_point() {
        for kernel in ["pattern", "stats", "chacha20", "crc32c"] {
            for mode in ["launch", "persistent"] {
                assert!(KERNELS.contains(&format!(".visible .entry knet_{kernel}_{mode}(")));
            }
        }
        let user = user_kernel("count_zeros");
        assert!(user.contains(".visible .entry knet_user_persistent("));
        assert!(user.contains(".extern .func") && !user.contains(USER_FUNCTION));
    }
}
