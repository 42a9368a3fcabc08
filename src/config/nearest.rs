//! The known word that a misspelt one most probably meant.

/// The nearest of `known` to `word`, letter case ignored, or None when nothing is near enough to be a
/// slip: more than a third of the letters differ, and neither is a part of the other.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let letters = word.chars().count();
    known
        .map(|candidate| (distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .min()
        .filter(|(steps, candidate)| {
            let longest = letters.max(candidate.len());
            let inside = letters >= 3 && (candidate.contains(&word) || word.contains(candidate));
            *steps * 3 <= longest || inside
        })
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    let mut last = None;
    for (index, letter) in from.chars().enumerate() {
        let mut next = vec![index + 1];
        for (column, other) in to.iter().enumerate() {
            let at =
                |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
            let replace = at(&row, column) + usize::from(letter != *other);
            let mut best = replace
                .min(at(&row, column + 1) + 1)
                .min(at(&next, column) + 1);
            let swapped = column > 0 && last == Some(*other) && to.get(column - 1) == Some(&letter);
            if swapped {
                best = best.min(at(&before, column - 1) + 1);
            }
            next.push(best);
        }
        before = core::mem::replace(&mut row, next);
        last = Some(letter);
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_found_and_nonsense_is_not() {
        let known = [
            "max_tcpcb",
            "max_udpcb",
            "mtu",
            "gateway",
            "user_bond_enable",
        ];
        let near = |word| nearest(word, known.into_iter());
        assert_eq!(near("max_tpccb"), Some("max_tcpcb"));
        assert_eq!(near("MTU "), Some("mtu"));
        assert_eq!(near("gatway"), Some("gateway"));
        assert_eq!(near("bond_enable"), Some("user_bond_enable"));
        assert_eq!(near("zebra"), None);
        assert_eq!(near(""), None);
    }

    #[test]
    fn a_swap_costs_one_step() {
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
