//! Quantities as Kubernetes writes them: `2`, `500m`, `0.5`, `1e3`, `1k`, `1Ki`.

/// Thousandths of a quantity, rounded up; more than can be counted is the most that can. Nothing
/// for what is no quantity, and for less than nothing.
pub fn milli(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && part.is_empty()) || part.contains('.') {
        return None;
    }
    let (tens, binary) = scale(unit)?;
    // Zeros in front count for nothing, so this overflows only for what cannot be counted.
    let digits = whole.chars().chain(part.chars());
    let mantissa = digits
        .filter_map(|c| c.to_digit(10))
        .try_fold(0u128, |sum, digit| {
            sum.checked_mul(10)?.checked_add(digit.into())
        });
    let Some(mantissa) = mantissa else {
        return Some(u64::MAX);
    };
    if mantissa == 0 {
        return Some(0);
    }
    // Thousandths, hence three more.
    let tens = i64::from(tens) + 3 - i64::try_from(part.len()).ok()?;
    let scaled = mantissa.checked_mul(1 << (10 * binary));
    let power = u32::try_from(tens.unsigned_abs()).unwrap_or(u32::MAX);
    let power = 10u128.checked_pow(power);
    let milli = match (scaled, power) {
        (Some(scaled), Some(power)) if tens < 0 => Some(scaled.div_ceil(power)),
        (Some(scaled), Some(power)) => scaled.checked_mul(power),
        // However much it is, it is a part of one.
        (_, None) if tens < 0 => Some(1),
        _ => None,
    };
    let counted = milli.and_then(|milli| u64::try_from(milli).ok());
    Some(counted.unwrap_or(u64::MAX))
}

/// The power of ten and the power of 1024 a unit stands for.
fn scale(unit: &str) -> Option<(i32, u32)> {
    Some(match unit {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 1),
        "Mi" => (0, 2),
        "Gi" => (0, 3),
        "Ti" => (0, 4),
        "Pi" => (0, 5),
        "Ei" => (0, 6),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            // `parse` takes one sign too, and nothing else that is not a digit.
            (digits.parse::<i16>().ok()?.into(), 0)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities() {
        for (text, expected) in [
            ("1", Some(1000)),
            ("+1", Some(1000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("5.", Some(5000)),
            ("0.1", Some(100)),
            ("1e3", Some(1_000_000)),
            ("1E3", Some(1_000_000)),
            ("1e+3", Some(1_000_000)),
            ("12e-1", Some(1200)),
            ("1.5e1", Some(15_000)),
            ("2k", Some(2_000_000)),
            ("3M", Some(3_000_000_000)),
            ("1G", Some(1_000_000_000_000)),
            ("1T", Some(1_000_000_000_000_000)),
            ("1P", Some(1_000_000_000_000_000_000)),
            ("1E", Some(u64::MAX)),
            ("1Ki", Some(1_024_000)),
            ("1.5Mi", Some(1_572_864_000)),
            ("1Gi", Some(1_073_741_824_000)),
            ("1Ti", Some(1_099_511_627_776_000)),
            ("1Pi", Some(1_125_899_906_842_624_000)),
            ("1Ei", Some(u64::MAX)),
            ("0", Some(0)),
            ("0e9999", Some(0)),
            ("1m", Some(1)),
            ("100u", Some(1)),
            ("1n", Some(1)),
            ("1e-30000", Some(1)),
            ("1e30000", Some(u64::MAX)),
            ("100000000000000000000000000000000000000000", Some(u64::MAX)),
            ("-1", None),
            ("many", None),
            ("1x", None),
            ("1K", None),
            ("1e", None),
            ("1e3k", None),
            ("1ee3", None),
            ("1.2.3", None),
            (".", None),
            (" 1", None),
            ("", None),
        ] {
            assert_eq!(milli(text), expected, "{text:?}");
        }
    }
}
