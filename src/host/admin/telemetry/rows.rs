//! Rows of an answer, as many as fit.

use serde_json::{Map, Value};

/// Bytes of an answer at most, as DPDK has it.
pub(super) const OUTPUT_MAX: usize = 16_384;
/// Rows of an answer at most.
const ROWS_MAX: usize = 256;
/// Bytes that frame the rows.
const FRAME_BYTES: usize = 512;

/// Rows by their number, as many as fit.
pub(super) fn rows(
    prefix: &str,
    found: impl IntoIterator<Item = (u64, Value)>,
    limit: u64,
) -> Value {
    let mut rows = Map::new();
    let mut used = FRAME_BYTES;
    let limit = match usize::try_from(limit) {
        Ok(limit) if (1..ROWS_MAX).contains(&limit) => limit,
        _ => ROWS_MAX,
    };
    for (number, row) in found.into_iter().take(limit) {
        let name = format!("{prefix}{number}");
        used += name.len() + row.to_string().len() + 4;
        if used > OUTPUT_MAX {
            break;
        }
        rows.insert(name, row);
    }
    Value::Object(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_stop_where_an_answer_is_full() {
        let wide = json!({"x": "y".repeat(100)});
        let many = (0..1_000).map(|number| (number, wide.clone()));
        let made = rows("fd_", many, 0);
        let count = made.as_object().unwrap().len();
        assert!((100..ROWS_MAX).contains(&count), "{count}");
        assert!(made.to_string().len() < OUTPUT_MAX);
        let few = rows("fd_", (5..9).map(|number| (number, json!(1))), 2);
        assert_eq!(few, json!({"fd_5": 1, "fd_6": 1}));
    }
}
