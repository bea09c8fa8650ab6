//! Figures for people: three digits and a unit, thousands apart, times in two units.

/// 3,482,112 → `3.3 MiB`. Three significant digits below 1,024; whole bytes below 1 KiB.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64)
}

/// The same of what was calculated, and may be a part of a byte or less than nothing.
#[must_use]
pub fn about_bytes(bytes: f64) -> String {
    if bytes < 0.0 { format!("-{}", scaled(-bytes)) } else { scaled(bytes) }
}

fn scaled(bytes: f64) -> String {
    let mut value = bytes;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        // 1,023.95 would be printed as 1,024 of the smaller unit.
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" || value >= 99.95 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// 1204 → `1,204`.
#[must_use]
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 object`, `1,204 objects`, `2 processes`.
#[must_use]
pub fn counted(number: u64, what: &str) -> String {
    let plural = match (number, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{} {what}{plural}", count(number))
}

/// Bytes a second → `+1.2 MiB/min`; by the hour where a minute gives less than a KiB.
#[must_use]
pub fn growth(bytes_per_second: f64) -> String {
    let sign = if bytes_per_second < 0.0 { '-' } else { '+' };
    let minute = bytes_per_second.abs() * 60.0;
    if minute * 60.0 < 0.5 {
        "0".into()
    } else if minute >= 1024.0 {
        format!("{sign}{}/min", scaled(minute))
    } else {
        format!("{sign}{}/h", scaled(minute * 60.0))
    }
}

/// Seconds → `2 h 10 min`: the largest unit and the next one.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds >= 86_400.0 * 365.0 {
        return "over a year".into();
    }
    let whole = seconds.max(0.0) as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    let two = |first: u64, unit: &str, second: u64, smaller: &str| {
        if second == 0 {
            format!("{first} {unit}")
        } else {
            format!("{first} {unit} {second} {smaller}")
        }
    };
    if days > 0 {
        two(days, "d", hours, "h")
    } else if hours > 0 {
        two(hours, "h", minutes, "min")
    } else if minutes > 0 {
        two(minutes, "min", whole % 60, "s")
    } else if whole > 0 {
        format!("{whole} s")
    } else {
        format!("{:.0} ms", seconds.max(0.0) * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        for (value, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (3_482_112, "3.3 MiB"),
            (200 << 20, "200 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (3_328_599_654, "3.1 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(value), text);
        }
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "object"), "1 object");
        assert_eq!(counted(1204, "object"), "1,204 objects");
        assert_eq!(counted(0, "process"), "0 processes");
    }

    #[test]
    fn rates_choose_their_hour() {
        assert_eq!(growth(20_971.52), "+1.2 MiB/min");
        assert_eq!(growth(-20_971.52), "-1.2 MiB/min");
        assert_eq!(growth(2.0), "+7.0 KiB/h");
        assert_eq!(growth(0.0), "0");
        assert_eq!(growth(0.000_001), "0");
    }

    #[test]
    fn times_take_two_units() {
        for (seconds, text) in [
            (0.25, "250 ms"),
            (42.0, "42 s"),
            (130.0, "2 min 10 s"),
            (7800.0, "2 h 10 min"),
            (7200.0, "2 h"),
            (93_600.0, "1 d 2 h"),
            (f64::INFINITY, "over a year"),
            (-3.0, "0 ms"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
