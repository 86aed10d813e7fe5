//! `strftime_now`: dates as Python writes them, from a clock that tests can set.
//!
//! Owns the calendar of UTC. Refuses time zones and locales.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Longest format that is written.
const MAX_FORMAT: usize = 1024;

/// Seconds since 1970, UTC.
pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(0)
}

/// Year, month (1-12) and day (1-31) of a count of days since 1970-01-01.
fn civil(days: i64) -> (i64, usize, i64) {
    // Years begin in March, so that the leap day is the last of its year.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month as usize, day)
}

/// The `strftime` of C for the fields that templates use; others are an error.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, Error> {
    if format.len() > MAX_FORMAT {
        return Err(Error::new(ErrorKind::InvalidOperation, "a date format too long"));
    }
    // Years 0 to 9999, as Python's.
    let seconds = seconds.clamp(-62_167_219_200, 253_402_300_799);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut field = chars.next();
        let unpadded = field == Some('-');
        if unpadded {
            field = chars.next();
        }
        let text = field.and_then(|field| value(field, seconds)).ok_or_else(|| {
            let what = format!("unknown field in the date format `{format}`");
            Error::new(ErrorKind::InvalidOperation, what)
        })?;
        let shown = text.trim_start_matches(['0', ' ']);
        let shown = if shown.is_empty() { "0" } else { shown };
        out.push_str(if unpadded { shown } else { &text });
    }
    Ok(out)
}

fn value(field: char, seconds: i64) -> Option<String> {
    let days = seconds.div_euclid(86_400);
    let second = seconds.rem_euclid(86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let weekday = DAYS[(days + 4).rem_euclid(7) as usize];
    let month_name = MONTHS[month - 1];
    let join = |formats: &str| -> Option<String> {
        formats
            .chars()
            .map(|c| if c.is_alphabetic() { value(c, seconds) } else { Some(c.into()) })
            .collect()
    };
    Some(match field {
        'Y' => format!("{year:04}"),
        'y' => format!("{:02}", year.rem_euclid(100)),
        'm' => format!("{month:02}"),
        'd' => format!("{day:02}"),
        'e' => format!("{day:2}"),
        'B' => month_name.to_owned(),
        'b' | 'h' => month_name[..3].to_owned(),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        'H' => format!("{hour:02}"),
        'I' => format!("{:02}", (hour + 11) % 12 + 1),
        'M' => format!("{minute:02}"),
        'S' => format!("{:02}", second % 60),
        'p' => (if hour < 12 { "AM" } else { "PM" }).to_owned(),
        'j' => format!("{:03}", (1..month).map(|m| month_days(year, m)).sum::<i64>() + day),
        'Z' => "UTC".to_owned(),
        'z' => "+0000".to_owned(),
        's' => seconds.to_string(),
        'F' => join("Y-m-d")?,
        'T' => join("H:M:S")?,
        'R' => join("H:M")?,
        'D' => join("m/d/y")?,
        '%' => "%".to_owned(),
        'n' => "\n".to_owned(),
        _ => return None,
    })
}

fn month_days(year: i64, month: usize) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_pythons() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_400, "%d %b %Y", "29 Feb 2000"),
            (1_735_689_599, "%F %T %a %j %I:%M %p", "2024-12-31 23:59:59 Tue 366 11:59 PM"),
            (1_709_251_200, "%-d %B %y %e %%", "1 March 24  1 %"),
            (-1, "%D %R", "12/31/69 23:59"),
        ];
        for (seconds, format, wanted) in cases {
            assert_eq!(strftime(format, seconds).unwrap(), wanted);
        }
        for bad in ["%", "%Q", "%-", &"x".repeat(2000)] {
            assert!(strftime(bad, 0).is_err());
        }
        for extreme in [i64::MIN, i64::MAX] {
            strftime("%Y %j %a", extreme).unwrap();
        }
    }
}
