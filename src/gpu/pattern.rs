//! Many literals at once (Aho-Corasick), found also where a chunk ends in the middle of one: the automaton's state is
//! kept from chunk to chunk, so no byte is looked at twice and none is held back.

mod rules;
mod skip;
mod tables;

use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::{Anchored, MatchError, StartKind, dfa, nfa};

pub(super) use self::rules::{Rules, parse};
use self::skip::{Skip, Worth};
use self::tables::Tables;
use super::chunk::Chunk;
use super::kernel::{Finding, KernelState, PayloadKernel};

/// The kernel `pattern`.
#[derive(Debug)]
pub(super) struct Pattern {
    rules: Rules,
    exact: Option<Machine>,
    any_case: Option<Machine>,
    matches: u64,
}

/// An automaton, and the number in the rules file of each of its patterns.
#[derive(Debug)]
struct Machine {
    form: Form,
    numbers: Vec<u32>,
    /// What may be passed where nothing begins.
    skip: Option<Skip>,
    /// There is a GPU's automaton too, and states are kept by its numbers.
    names: Option<Names>,
}

/// What a state of this automaton is called in a GPU's.
#[derive(Debug)]
struct Names {
    /// By the GPU's state: ours, or the start where it has none.
    ours: Vec<StateID>,
    /// Ours and the GPU's, sorted.
    theirs: Vec<(StateID, u32)>,
}

/// A table is faster; the other form is smaller.
#[derive(Debug)]
enum Form {
    Table(dfa::DFA),
    Compact(nfa::contiguous::NFA),
}

/// Bytes up to which the automaton is a table: what a second-level cache holds beside all else.
const TABLE_BYTES_MAX: usize = 1 << 20;

impl Pattern {
    /// Builds the automata of `rules`.
    ///
    /// # Errors
    /// One line: they are too many or too long for an automaton.
    pub(super) fn new(rules: Rules) -> Result<Self, String> {
        let build = |any_case| Machine::new(&rules, any_case);
        Ok(Self {
            exact: build(false)?,
            any_case: build(true)?,
            rules,
            matches: 0,
        })
    }

    /// The GPU's tables of one kind of rules.
    fn tables(&self, any_case: bool) -> Result<Tables, String> {
        let rules = (0_u32..).zip(&self.rules.0);
        let patterns = rules
            .filter(|(_, rule)| rule.any_case == any_case)
            .map(|(number, rule)| (number, rule.bytes.as_slice()));
        Tables::new(patterns, any_case)
    }
}

impl Machine {
    fn new(rules: &Rules, any_case: bool) -> Result<Option<Self>, String> {
        let mut numbers = Vec::new();
        let mut patterns = Vec::new();
        for (number, rule) in (0_u32..).zip(&rules.0) {
            if rule.any_case == any_case {
                numbers.push(number);
                patterns.push(rule.bytes.as_slice());
            }
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        let form = if table_bytes(&patterns) <= TABLE_BYTES_MAX {
            dfa::Builder::new()
                .start_kind(StartKind::Unanchored)
                .ascii_case_insensitive(any_case)
                .build(&patterns)
                .map(Form::Table)
        } else {
            nfa::contiguous::Builder::new()
                .ascii_case_insensitive(any_case)
                .build(&patterns)
                .map(Form::Compact)
        };
        let form = form.map_err(|error| format!("patterns: {error}"))?;
        Ok(Some(Self {
            form,
            numbers,
            skip: Skip::new(&patterns, any_case),
            names: None,
        }))
    }

    /// Goes on from `state`, 0 at the beginning; returns the number of the first pattern found and how often one was.
    fn run(&self, bytes: &[u8], state: &mut u64) -> Result<(Option<u32>, u64), MatchError> {
        let names = self.names.as_ref();
        // A GPU goes on from the very state that every byte leads to.
        let skip = self.skip.as_ref().filter(|_| names.is_none());
        let (first, count) = match &self.form {
            Form::Table(machine) => walk(machine, names, skip, bytes, state)?,
            Form::Compact(machine) => walk(machine, names, skip, bytes, state)?,
        };
        Ok((first.and_then(|at| self.numbers.get(at).copied()), count))
    }

    /// Keeps states by the GPU's numbers from now on.
    fn rename(&mut self, tables: &Tables) -> Result<(), MatchError> {
        self.names = Some(match &self.form {
            Form::Table(machine) => Names::new(machine, tables)?,
            Form::Compact(machine) => Names::new(machine, tables)?,
        });
        Ok(())
    }
}

impl Names {
    fn new<M: Automaton>(machine: &M, tables: &Tables) -> Result<Self, MatchError> {
        let start = machine.start_state(Anchored::No)?;
        let mut ours = vec![start; tables.states()];
        let mut theirs = vec![(start, 0)];
        for (parent, byte, state) in &tables.steps {
            let from = ours.get(*parent as usize).copied().unwrap_or(start);
            let to = machine.next_state(Anchored::No, from, *byte);
            if let Some(name) = ours.get_mut(*state as usize) {
                *name = to;
            }
            theirs.push((to, *state));
        }
        theirs.sort_unstable();
        Ok(Self { ours, theirs })
    }

    /// The GPU's number of our state. Both have a state for each beginning of a pattern, and no other.
    fn of(&self, state: StateID) -> u64 {
        let place = self.theirs.binary_search_by_key(&state, |(ours, _)| *ours);
        let found = place.ok().and_then(|place| self.theirs.get(place));
        found.map_or(0, |(_, theirs)| u64::from(*theirs))
    }
}

/// Bytes of a table of these patterns, by the beginnings that they have in common and the bytes that they are made of.
fn table_bytes(patterns: &[&[u8]]) -> usize {
    let mut sorted = patterns.to_vec();
    sorted.sort_unstable();
    let (mut states, mut before, mut classes) = (1, [].as_slice(), [false; 256]);
    for pattern in sorted {
        let common = pattern.iter().zip(before).take_while(|(a, b)| a == b);
        states += pattern.len() - common.count();
        before = pattern;
        for byte in pattern {
            if let Some(class) = classes.get_mut(usize::from(*byte)) {
                *class = true;
            }
        }
    }
    let classes = classes.iter().filter(|used| **used).count() + 1;
    states * classes.next_power_of_two() * size_of::<u32>()
}

/// Walks `machine` over `bytes`. `state` is a GPU's, or one more than the automaton's, so that 0 is the beginning.
fn walk<M: Automaton>(
    machine: &M,
    names: Option<&Names>,
    skip: Option<&Skip>,
    bytes: &[u8],
    state: &mut u64,
) -> Result<(Option<usize>, u64), MatchError> {
    let kept = match names {
        Some(names) => names
            .ours
            .get(usize::try_from(*state).unwrap_or(0))
            .copied(),
        None => state
            .checked_sub(1)
            .and_then(|kept| usize::try_from(kept).ok())
            .and_then(|kept| StateID::new(kept).ok()),
    };
    let start = machine.start_state(Anchored::No)?;
    let mut at = kept.unwrap_or(start);
    let (mut first, mut count) = (None, 0);
    let (mut done, mut worth) = (0, Worth::new());
    loop {
        if let Some(skip) = skip
            && at == start
            && worth.asks()
        {
            let next = skip.next(bytes, done);
            worth.note(next - done);
            done = next;
        }
        let asks = skip.is_some() && worth.asks();
        let rest = bytes.get(done..).unwrap_or_default();
        let mut passed = 0;
        for byte in rest {
            at = machine.next_state(Anchored::No, at, *byte);
            passed += 1;
            if machine.is_special(at) && machine.is_match(at) {
                count += 1;
                first = first.or_else(|| Some(machine.match_pattern(at, 0).as_usize()));
            }
            if asks && at == start {
                break;
            }
        }
        done += passed;
        if done >= bytes.len() {
            break;
        }
    }
    *state = match names {
        Some(names) => names.of(at),
        None => u64::from(at.as_u32()) + 1,
    };
    Ok((first, count))
}

impl PayloadKernel for Pattern {
    fn name(&self) -> &'static str {
        "pattern"
    }

    fn run(&mut self, chunk: &mut Chunk<'_>, state: &mut KernelState) -> Finding {
        let mut finding = Finding::NOTHING;
        let machines = [&self.exact, &self.any_case];
        for (machine, kept) in machines.into_iter().zip(&mut state.0) {
            let Some(machine) = machine else {
                continue;
            };
            match machine.run(chunk.bytes, kept) {
                Ok((matched, count)) => {
                    finding.matched = finding.matched.or(matched);
                    finding.aux += count;
                }
                // No unanchored start: it was built with one.
                Err(_) => finding.failed = true,
            }
        }
        self.matches += finding.aux;
        finding
    }

    fn device_params(&mut self) -> Result<Vec<u8>, String> {
        let mut both = [None, None];
        for (any_case, place) in [false, true].into_iter().zip(&mut both) {
            let tables = self.tables(any_case)?;
            let machine = if any_case {
                &mut self.any_case
            } else {
                &mut self.exact
            };
            let Some(machine) = machine else {
                continue;
            };
            machine
                .rename(&tables)
                .map_err(|error| format!("patterns: {error}"))?;
            *place = Some(tables);
        }
        Ok(Tables::image(both.each_ref().map(Option::as_ref)))
    }

    fn settle(&mut self, _: usize, finding: &Finding) {
        self.matches += finding.aux;
    }

    fn report(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("payload_pattern_matches", self.matches);
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunk::tests::chunk;
    use super::*;

    fn kernel(file: &str) -> Pattern {
        Pattern::new(parse(file.as_bytes()).unwrap()).unwrap()
    }

    fn feed(kernel: &mut Pattern, parts: &[&[u8]]) -> Vec<Option<u32>> {
        let mut state = KernelState::default();
        let feed = |part: &&[u8]| {
            let mut bytes = part.to_vec();
            kernel.run(&mut chunk(0, &mut bytes), &mut state).matched
        };
        parts.iter().map(feed).collect()
    }

    #[test]
    fn a_pattern_is_found_wherever_the_stream_is_cut() {
        let text = b"xx forbidden yy";
        for cut in 0..text.len() {
            let (first, second) = text.split_at(cut);
            let mut kernel = kernel("other\nforbidden\n");
            let found = feed(&mut kernel, &[first, second]);
            let ends_in_first = cut >= 12;
            assert_eq!(
                found,
                [ends_in_first.then_some(1), (!ends_in_first).then_some(1)]
            );
        }
        let mut kernel = kernel("forbidden");
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(feed(&mut kernel, &bytes).iter().flatten().count(), 1);
    }

    #[test]
    fn case_matters_only_where_the_rule_says_so() {
        let rules = "\"Secret\"\ni\"Other\"\n";
        assert_eq!(feed(&mut kernel(rules), &[b"SECRET"]), [None]);
        assert_eq!(feed(&mut kernel(rules), &[b"a Secret"]), [Some(0)]);
        assert_eq!(feed(&mut kernel(rules), &[b"oTh", b"ER"]), [None, Some(1)]);
    }

    #[test]
    fn both_forms_find_what_a_plain_search_finds() {
        let mut word = 12_345_u64;
        let mut random = move || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word >> 33
        };
        let patterns: Vec<String> = (0..4_000).map(|_| format!("p{:08x}", random())).collect();
        let file = patterns.join("\n");
        let mut large = kernel(&file);
        assert!(matches!(
            large.exact.as_ref().unwrap().form,
            Form::Compact(_)
        ));
        let mut small = kernel(&patterns[..100].join("\n"));
        assert!(matches!(small.exact.as_ref().unwrap().form, Form::Table(_)));
        for number in [0, 57, 99] {
            let text = format!("noise {} noise", patterns[number]);
            let found = [Some(u32::try_from(number).unwrap())];
            assert_eq!(feed(&mut large, &[text.as_bytes()]), found);
            assert_eq!(feed(&mut small, &[text.as_bytes()]), found);
        }
        assert_eq!(feed(&mut large, &[b"p0000000"]), [None]);
    }

    /// What `kernel` finds in `text` cut at `cuts`, with and without passing anything.
    fn both(kernel: &mut Pattern, text: &[u8], cuts: &[usize]) -> [(Option<u32>, u64); 2] {
        let machine = kernel.exact.as_mut().unwrap();
        let kept = machine.skip.take();
        [None, kept].map(|skip| {
            machine.skip = skip;
            let (mut state, mut all, mut from) = (0, (None, 0), 0);
            for to in cuts.iter().copied().chain([text.len()]) {
                let (first, count) = machine.run(&text[from..to], &mut state).unwrap();
                all = (all.0.or(first), all.1 + count);
                from = to;
            }
            all
        })
    }

    #[test]
    fn what_is_passed_holds_no_match() {
        let mut word = 99_u64;
        let mut random = move |below: usize| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(word >> 33).unwrap() % below
        };
        let patterns = ["aabab", "abbabb", "bbbbbb", "babaab", "aabaabb"];
        let mut kernel = kernel(&patterns.join("\n"));
        assert!(kernel.exact.as_ref().unwrap().skip.is_some());
        let mut found = 0;
        for _ in 0..300 {
            // Two letters and a rare third: many near matches, some matches.
            let text: Vec<u8> = (0..random(200))
                .map(|_| [b'a', b'b', b'a', b'b', b'c'][random(5)])
                .collect();
            let mut cuts: Vec<usize> = (0..random(4)).map(|_| random(text.len() + 1)).collect();
            cuts.sort_unstable();
            let [plain, passing] = both(&mut kernel, &text, &cuts);
            assert_eq!(plain, passing, "{text:?} cut at {cuts:?}");
            found += plain.1;
        }
        assert!(found > 100, "{found}");
    }

    #[test]
    fn states_with_a_gpus_numbers_go_on_as_ours_do() {
        let file = "he\nshe\nhers\ni\"His\"\n";
        let text = b"ushers and HIShers: she is his";
        for cut in 0..text.len() {
            let (first, second) = text.split_at(cut);
            let mut named = kernel(file);
            named.device_params().unwrap();
            let parts = [first, second];
            assert_eq!(feed(&mut named, &parts), feed(&mut kernel(file), &parts));
        }
        let mut named = kernel(file);
        named.device_params().unwrap();
        let mut state = KernelState::default();
        named.run(&mut chunk(0, &mut b"sh".to_vec()), &mut state);
        // Two steps from the start: not a state of the crate's.
        assert!(state.0[0] > 0 && state.0[1] > 0, "{state:?}");
        named.run(&mut chunk(0, &mut b"...".to_vec()), &mut state);
        assert_eq!(state, KernelState::default());
    }
}
