//! Histograms as a host tells them: differences, and what they say.

use serde_json::Value;

/// Numbers of nanoseconds beyond each bucket, and counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Those under `name` in an answer.
    pub(crate) fn of(answer: &Value, name: &str) -> Self {
        let buckets = answer.get(name).and_then(Value::as_array);
        let pair = |bucket: &Value| Some((bucket.get(0)?.as_u64()?, bucket.get(1)?.as_u64()?));
        Self(buckets.into_iter().flatten().filter_map(pair).collect())
    }

    /// What came since `before`; everything when the host began anew meanwhile.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let old = |beyond: u64| {
            before
                .0
                .iter()
                .find(|(other, _)| *other == beyond)
                .map_or(0, |(_, count)| *count)
        };
        let began_anew = before.0.iter().any(|(beyond, count)| {
            self.0
                .iter()
                .find(|(other, _)| other == beyond)
                .map_or(0, |(_, now)| *now)
                < *count
        });
        if began_anew {
            return self.clone();
        }
        let rest = self
            .0
            .iter()
            .map(|(beyond, count)| (*beyond, count - old(*beyond)));
        Self(rest.filter(|(_, count)| *count > 0).collect())
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Self) -> Self {
        let mut sum: std::collections::BTreeMap<u64, u64> = self.0.iter().copied().collect();
        for (beyond, count) in &other.0 {
            *sum.entry(*beyond).or_default() += count;
        }
        Self(sum.into_iter().collect())
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }

    pub(crate) fn buckets(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// At most so many nanoseconds for `share` of a thousand; None when there is nothing.
    pub(crate) fn at_most(&self, share: u64) -> Option<u64> {
        let wanted = (self.count() * share).div_ceil(1_000).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(beyond, count)| {
            seen += count;
            (seen >= wanted).then_some(*beyond)
        })
    }
}

/// Nanoseconds with three digits and a unit.
pub(crate) fn span(nanos: Option<u64>) -> String {
    match nanos {
        None => "-".to_owned(),
        Some(nanos @ 0..1_000) => format!("{nanos} ns"),
        Some(nanos @ 1_000..1_000_000) => format!("{}.{:02} us", nanos / 1_000, nanos / 10 % 100),
        Some(nanos @ 1_000_000..1_000_000_000) => {
            format!("{}.{:02} ms", nanos / 1_000_000, nanos / 10_000 % 100)
        }
        Some(nanos) => format!(
            "{}.{:02} s",
            nanos / 1_000_000_000,
            nanos / 10_000_000 % 100
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shares_and_differences() {
        let old = Spans::of(&json!({"x": [[10, 5], [20, 1]]}), "x");
        let new = Spans::of(&json!({"x": [[10, 95], [20, 10], [4_000, 1]]}), "x");
        let fresh = new.since(&old);
        assert_eq!(fresh.buckets(), [(10, 90), (20, 9), (4_000, 1)]);
        assert_eq!(
            (fresh.at_most(500), fresh.at_most(990), fresh.at_most(1_000)),
            (Some(10), Some(20), Some(4_000))
        );
        assert_eq!(old.since(&new), old);
        assert_eq!(Spans::default().at_most(500), None);
        assert_eq!(Spans::of(&json!({}), "x").count(), 0);
    }

    #[test]
    fn spans_are_short() {
        let said: Vec<String> = [
            None,
            Some(999),
            Some(1_234),
            Some(5_678_901),
            Some(2_500_000_000),
        ]
        .map(span)
        .into();
        assert_eq!(said, ["-", "999 ns", "1.23 us", "5.67 ms", "2.50 s"]);
    }
}
