//! CPU lists as the kernel and K-NET write them: `1,4-7`.

use crate::id::CpuId;

/// Reads a list; `limit` is one above the largest number allowed.
///
/// # Errors
/// One line, what is wrong.
pub fn parse(text: &str, limit: u32) -> Result<Vec<CpuId>, String> {
    let mut cpus: Vec<CpuId> = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
            digits
                .then(|| text.parse::<u32>().ok())
                .flatten()
                .ok_or_else(|| format!("'{part}' is not a CPU or a range"))
        };
        let (first, last) = (number(first.trim())?, number(last.trim())?);
        if last < first {
            return Err(format!("the range {part} runs backwards"));
        }
        if last >= limit {
            return Err(format!("CPU {last} is above {}", limit.saturating_sub(1)));
        }
        for cpu in first..=last {
            if cpus.contains(&CpuId(cpu)) {
                return Err(format!("CPU {cpu} is named twice"));
            }
            cpus.push(CpuId(cpu));
        }
    }
    Ok(cpus)
}

/// Writes a list, ranges joined: the inverse of [`parse`] for an ascending list.
#[must_use]
pub fn show(cpus: &[CpuId]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu.0) => *last = cpu.0,
            _ => runs.push((cpu.0, cpu.0)),
        }
    }
    let parts = runs.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        assert_eq!(
            parse("1,4-6", 320).map(|cpus| show(&cpus)),
            Ok("1,4-6".to_owned())
        );
        for bad in [
            "",
            ",",
            "1,",
            "a",
            "3-1",
            "320",
            "1,1",
            "1-3,2",
            "-1",
            "1-",
            "99999999999",
        ] {
            assert!(parse(bad, 320).is_err(), "{bad}");
        }
    }
}
