//! Random rules and payload.

use knet::gpu::Builtin;

/// A generator that a seed decides.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 33) as usize % end
    }

    /// Between both, the second excluded.
    pub(crate) fn between(&mut self, begin: usize, end: usize) -> usize {
        begin + self.below(end - begin)
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    pub(crate) fn of(&mut self, alphabet: &[u8], length: usize) -> Vec<u8> {
        (0..length)
            .map(|_| alphabet[self.below(alphabet.len())])
            .collect()
    }
}

/// Literals that overlap, contain each other and are alike.
pub(crate) fn few_rules() -> Builtin {
    let mut file =
        b"\"aba\"\n\"abaab\"\n\"baa\"\n\"bab\"\ni\"AbBa\"\ni\"bba\"\n\"aba\"\ni\"c\"\n".to_vec();
    let mut random = Random::new(1);
    for _ in 0..40 {
        let length = random.between(3, 40);
        let literal = random.of(b"abAB", length);
        file.extend_from_slice(if random.below(2) == 0 { b"i\"" } else { b"\"" });
        file.extend_from_slice(&literal);
        file.extend_from_slice(b"\"\n");
    }
    Builtin::Pattern(file)
}

/// What begins like the literals of [`few_rules`] nearly everywhere.
pub(crate) fn near_matches(random: &mut Random, length: usize) -> Vec<u8> {
    let alphabet: &[u8] = [b"ab", b"abAB".as_slice(), b"abABcd \n"][random.below(3)];
    random.of(alphabet, length)
}

/// One word in 20 000 has a rule.
fn word(number: usize) -> Vec<u8> {
    let mut random = Random::new(number as u64);
    let length = random.between(6, 20);
    random.of(b"abcdefghijklmnopqrstuvwxyzABCDEFGH0123456789/.-", length)
}

/// 10 000 literals, 3 000 of them in any case.
pub(crate) fn many_rules() -> Builtin {
    let mut file = Vec::new();
    for number in 0..10_000 {
        file.extend_from_slice(if number % 10 < 3 { b"i\"" } else { b"\"" });
        file.extend(word(number));
        file.extend_from_slice(b"\"\n");
    }
    Builtin::Pattern(file)
}

/// Words, most of them cut or without a rule.
pub(crate) fn words(random: &mut Random, length: usize) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() < length {
        let mut word = word(random.below(20_000));
        word.truncate(random.between(1, 24));
        if random.below(4) == 0 {
            word.make_ascii_uppercase();
        }
        text.extend(word);
    }
    text.truncate(length);
    text
}

/// Literals of up to 1024 bytes, of few different ones.
pub(crate) fn long_rules() -> Builtin {
    let mut file = Vec::new();
    for length in [5, 63, 64, 65, 500, 1_024] {
        file.extend(vec![b'x'; length]);
        file.push(b'\n');
        file.extend(vec![b'x'; length - 1]);
        file.extend_from_slice(b"y\n");
    }
    Builtin::Pattern(file)
}

/// Runs of one byte.
pub(crate) fn repetitive(random: &mut Random, length: usize) -> Vec<u8> {
    let mut text = Vec::new();
    while text.len() < length {
        text.extend(vec![b'x'; random.between(1, 3_000)]);
        text.push(b"yz"[random.below(2)]);
    }
    text.truncate(length);
    text
}

/// Noise, or text.
pub(crate) fn mixed(random: &mut Random, length: usize) -> Vec<u8> {
    if random.below(2) == 0 {
        random.bytes(length)
    } else {
        random.of(b"GET / HTTP/1.1\r\n \0\xff", length)
    }
}
