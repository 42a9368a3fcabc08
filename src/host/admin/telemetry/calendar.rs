//! Dates of the file that is kept.

use core::fmt;

/// A moment in UTC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    year: i64,
    month: i64,
    day: i64,
    second: i64,
}

impl Moment {
    /// From seconds since 1970.
    pub(super) const fn from_unix(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        // Years begin in March here, so that a leap day is the last; an era has 400 of them.
        let since = days + 719_468;
        let era = since.div_euclid(146_097);
        let day_of_era = since.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let (month_of_year, later) = if month < 10 {
            (month + 3, 0)
        } else {
            (month - 9, 1)
        };
        Self {
            year: era * 400 + year_of_era + later,
            month: month_of_year,
            day: day_of_year - (153 * month + 2) / 5 + 1,
            second: seconds.rem_euclid(86_400),
        }
    }

    /// Now.
    pub(super) fn now() -> Self {
        Self::from_unix(rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec)
    }

    /// `YYYYmmddHHMMSS`
    pub(super) fn compact(self) -> String {
        self.to_string()
            .chars()
            .filter(char::is_ascii_digit)
            .collect()
    }
}

impl fmt::Display for Moment {
    /// `YYYY-mm-dd HH:MM:SS`
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = (self.second / 3_600, self.second / 60 % 60, self.second % 60);
        write!(
            out,
            "{:04}-{:02}-{:02} {hour:02}:{minute:02}:{second:02}",
            self.year, self.month, self.day
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_795_998_645, "2026-11-30 00:30:45"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(Moment::from_unix(seconds).to_string(), date);
        }
        assert_eq!(Moment::from_unix(951_782_399).compact(), "20000228235959");
    }
}
