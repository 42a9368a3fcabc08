//! The automaton of `pattern` as a GPU walks it: `struct knet_automaton` of `cuda/knet_ring.h`.
//!
//! A full table of 10 000 rules has 10^5 states times 256 entries, far beyond any cache. This one has one entry a state:
//! the transitions of all states lie in one array, interleaved so that no two want the same place (a double array), and
//! a state without a transition for a byte asks the state of its longest proper suffix. 20 bytes a state, and most steps
//! are one load.

use std::collections::VecDeque;

/// A transition that is nobody's.
const NOBODY: u32 = u32::MAX;
/// In a target: a pattern ends here.
const ENDS_HERE: u32 = 1 << 31;
/// A search that was longer moves the place where searches begin.
const TRIES: u32 = 32;

/// The tables. A state is the place of its transition for byte 0; the start is 0.
#[derive(Debug)]
pub(super) struct Tables {
    /// Whose, and where to.
    edges: Vec<[u32; 2]>,
    fail: Vec<u32>,
    depth: Vec<u32>,
    /// The number of the first pattern that ends there, plus 1.
    found: Vec<u32>,
    /// Every state but the start, its parent first: parent, byte, state.
    pub(super) steps: Vec<(u32, u8, u32)>,
}

impl Tables {
    /// Tables of literals with their numbers; with `any_case` letters match in either case.
    ///
    /// # Errors
    /// They have more bytes than states can be counted.
    pub(super) fn new<'a>(
        patterns: impl Iterator<Item = (u32, &'a [u8])>,
        any_case: bool,
    ) -> Result<Self, String> {
        let trie = Trie::new(patterns, any_case);
        if trie.nodes.len() >= (ENDS_HERE / 2) as usize {
            return Err("too many bytes of patterns for a GPU".to_owned());
        }
        let mut made = Self {
            edges: Vec::new(),
            fail: Vec::new(),
            depth: Vec::new(),
            found: Vec::new(),
            steps: Vec::with_capacity(trie.nodes.len()),
        };
        made.lay_out(&trie);
        made.link();
        Ok(made)
    }

    /// A number above every state.
    pub(super) fn states(&self) -> usize {
        self.fail.len()
    }

    /// Gives every node of the trie its place, nodes near the root first.
    fn lay_out(&mut self, trie: &Trie) {
        let mut places = Places::default();
        let mut waiting = VecDeque::from([(0_usize, None)]);
        while let Some((node, from)) = waiting.pop_front() {
            let children: Vec<(u8, usize)> = trie.children(node).collect();
            let state = match from {
                None => places.start(&children),
                Some(_) => places.choose(&children),
            };
            self.grow(state);
            let depth = match from {
                None => 0,
                Some((parent, byte)) => {
                    set(&mut self.edges, parent + u32::from(byte), [parent, state]);
                    self.steps.push((parent, byte, state));
                    at(&self.depth, parent) + 1
                }
            };
            set(&mut self.depth, state, depth);
            set(&mut self.found, state, trie.found(node));
            for (byte, child) in children {
                waiting.push_back((child, Some((state, byte))));
            }
        }
    }

    /// Makes room for `state` and all its transitions.
    fn grow(&mut self, state: u32) {
        let states = self.states().max(state as usize + 1);
        for table in [&mut self.fail, &mut self.depth, &mut self.found] {
            table.resize(states, 0);
        }
        self.edges.resize(states + 256, [NOBODY, 0]);
    }

    /// Finds each state's longest proper suffix, and what ends there because it ends in the suffix.
    fn link(&mut self) {
        for step in 0..self.steps.len() {
            let Some((parent, byte, state)) = self.steps.get(step).copied() else {
                break;
            };
            let suffix = match parent {
                0 => 0,
                parent => self.next(at(&self.fail, parent), byte),
            };
            set(&mut self.fail, state, suffix);
            if at(&self.found, state) == 0 {
                let inside = at(&self.found, suffix);
                set(&mut self.found, state, inside);
            }
            if at(&self.found, state) != 0 {
                let place = parent + u32::from(byte);
                set(&mut self.edges, place, [parent, state | ENDS_HERE]);
            }
        }
    }

    /// The state behind `byte`, which is in lower case where case does not matter.
    fn next(&self, mut state: u32, byte: u8) -> u32 {
        loop {
            let [from, to] = at(&self.edges, state + u32::from(byte));
            if from == state {
                return to & !ENDS_HERE;
            }
            if state == 0 {
                return 0;
            }
            state = at(&self.fail, state);
        }
    }

    /// `struct knet_pattern_params` of both automata; one that is absent has the start alone.
    pub(super) fn image(both: [Option<&Self>; 2]) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let mut tail: Vec<u8> = Vec::new();
        for tables in both {
            let Some(tables) = tables else {
                head.extend_from_slice(&1_u64.to_le_bytes());
                head.extend_from_slice(&[0; 32]);
                continue;
            };
            head.extend_from_slice(&(tables.states() as u64).to_le_bytes());
            let edges = tables.edges.as_flattened();
            for table in [edges, &tables.fail, &tables.depth, &tables.found] {
                tail.resize(tail.len().next_multiple_of(16), 0);
                head.extend_from_slice(&((HEAD_BYTES + tail.len()) as u64).to_le_bytes());
                tail.extend(table.iter().flat_map(|word| word.to_le_bytes()));
            }
        }
        head.append(&mut tail);
        head
    }
}

/// Of `struct knet_pattern_params`.
const HEAD_BYTES: usize = 80;

fn at<T: Copy + Default>(table: &[T], place: u32) -> T {
    table.get(place as usize).copied().unwrap_or_default()
}

fn set<T>(table: &mut [T], place: u32, value: T) {
    if let Some(entry) = table.get_mut(place as usize) {
        *entry = value;
    }
}

/// The patterns by their first bytes.
struct Trie {
    nodes: Vec<Node>,
}

struct Node {
    byte: u8,
    /// 0: none.
    first_child: usize,
    next_sibling: usize,
    found: u32,
}

impl Trie {
    fn new<'a>(patterns: impl Iterator<Item = (u32, &'a [u8])>, any_case: bool) -> Self {
        let node = |byte, next_sibling| Node {
            byte,
            first_child: 0,
            next_sibling,
            found: 0,
        };
        let mut nodes = vec![node(0, 0)];
        for (number, bytes) in patterns {
            let mut here = 0;
            for byte in bytes {
                let byte = if any_case {
                    byte.to_ascii_lowercase()
                } else {
                    *byte
                };
                let first = nodes.get(here).map_or(0, |node: &Node| node.first_child);
                let mut child = first;
                while child != 0 && nodes.get(child).is_some_and(|node| node.byte != byte) {
                    child = nodes.get(child).map_or(0, |node| node.next_sibling);
                }
                if child == 0 {
                    child = nodes.len();
                    nodes.push(node(byte, first));
                    if let Some(parent) = nodes.get_mut(here) {
                        parent.first_child = child;
                    }
                }
                here = child;
            }
            // Of equal patterns the first.
            if let Some(node) = nodes.get_mut(here)
                && node.found == 0
            {
                node.found = number + 1;
            }
        }
        Self { nodes }
    }

    fn children(&self, node: usize) -> impl Iterator<Item = (u8, usize)> {
        let known = |at: usize| (at != 0).then(|| self.nodes.get(at)).flatten();
        let mut next = self.nodes.get(node).map_or(0, |node| node.first_child);
        core::iter::from_fn(move || {
            let (child, here) = (next, known(next)?);
            next = here.next_sibling;
            Some((here.byte, child))
        })
    }

    fn found(&self, node: usize) -> u32 {
        self.nodes.get(node).map_or(0, |node| node.found)
    }
}

/// Which places of transitions and which states are taken.
#[derive(Default)]
struct Places {
    transitions: Taken,
    states: Taken,
    /// States before this one hardly ever fit.
    begin: u32,
}

impl Places {
    /// The start's state, which is 0.
    fn start(&mut self, children: &[(u8, usize)]) -> u32 {
        self.take(0, children)
    }

    /// A state of which all transitions have a free place. What has none takes what is left behind.
    fn choose(&mut self, children: &[(u8, usize)]) -> u32 {
        if children.is_empty() {
            let state = self.states.free_from(1);
            return self.take(state, children);
        }
        let fits = |transitions: &Taken, state: u32| {
            let free = |(byte, _): &(u8, usize)| transitions.is_free(state + u32::from(*byte));
            children.iter().all(free)
        };
        let mut tries = 0;
        let mut state = self.states.free_from(self.begin.max(1));
        // Behind the end everything is free.
        while !fits(&self.transitions, state) {
            tries += 1;
            state = self.states.free_from(state + 1);
        }
        if tries > TRIES {
            self.begin = state;
        }
        self.take(state, children)
    }

    fn take(&mut self, state: u32, children: &[(u8, usize)]) -> u32 {
        self.states.take(state);
        for (byte, _) in children {
            self.transitions.take(state + u32::from(*byte));
        }
        state
    }
}

/// A set of numbers that knows the next one outside.
#[derive(Default)]
struct Taken {
    /// For each number itself when it is free, else one behind it from which to look on.
    next: Vec<u32>,
}

impl Taken {
    /// The first number from which on all are free.
    fn end(&self) -> u32 {
        u32::try_from(self.next.len()).unwrap_or(NOBODY)
    }

    fn is_free(&self, number: u32) -> bool {
        self.next
            .get(number as usize)
            .is_none_or(|next| *next == number)
    }

    fn free_from(&mut self, mut number: u32) -> u32 {
        while !self.is_free(number) {
            let next = at(&self.next, number);
            // The way gets shorter each time that it is gone.
            let behind = if self.is_free(next) {
                next
            } else {
                at(&self.next, next)
            };
            set(&mut self.next, number, behind);
            number = behind;
        }
        number
    }

    fn take(&mut self, number: u32) {
        while self.end() <= number {
            self.next.push(self.end());
        }
        set(&mut self.next, number, number + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(patterns: &[&[u8]], any_case: bool) -> Tables {
        Tables::new((0_u32..).zip(patterns.iter().copied()), any_case).unwrap()
    }

    #[test]
    fn a_state_remembers_the_longest_suffix_that_begins_a_pattern() {
        let made = tables(&[b"hers", b"his", b"she", b"he"], false);
        let mut state = 0;
        let mut seen = Vec::new();
        for byte in b"ushers" {
            state = made.next(state, *byte);
            seen.push((at(&made.depth, state), at(&made.found, state)));
        }
        // "she" ends, with "he" inside; then "hers".
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 3), (3, 0), (4, 1)]);
    }

    #[test]
    fn states_are_few_and_places_are_nearly_full() {
        let mut word = 7_u64;
        let patterns: Vec<Vec<u8>> = (0..3_000)
            .map(|_| {
                (0..12)
                    .map(|_| {
                        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        b'a' + u8::try_from((word >> 40) % 26).unwrap()
                    })
                    .collect()
            })
            .collect();
        let all: Vec<&[u8]> = patterns.iter().map(Vec::as_slice).collect();
        let made = tables(&all, false);
        assert!(made.steps.len() > 25_000, "{}", made.steps.len());
        assert!(
            made.states() < made.steps.len() + made.steps.len() / 10 + 1_000,
            "{} places for {} states",
            made.states(),
            made.steps.len()
        );
    }
}
