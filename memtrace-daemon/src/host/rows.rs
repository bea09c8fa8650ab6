//! Files of /proc that have a row a value: `Name:   12 kB`, `name 12`.

/// The rows of such a file, by name. Values in kB become bytes.
pub(super) struct Rows<'a>(&'a str);

impl<'a> Rows<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self(text)
    }

    /// A row's value: bytes where it has a unit, a number where it has none. `None` where there
    /// is no such row, or another kind of value in it.
    pub(super) fn get(&self, name: &str) -> Option<u64> {
        let value = |line: &'a str| {
            let rest = line.strip_prefix(name)?;
            let rest = rest.strip_prefix(':').or_else(|| rest.strip_prefix(' '))?;
            let mut words = rest.split_ascii_whitespace();
            let number: u64 = words.next()?.parse().ok()?;
            match words.next() {
                Some("kB") => number.checked_mul(1_024),
                Some(_) => None,
                None => Some(number),
            }
        };
        self.0.lines().find_map(value)
    }

    /// The same, and 0 where there is no such row: older kernels count less.
    pub(super) fn or_zero(&self, name: &str) -> u64 {
        self.get(name).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_found_by_its_whole_name() {
        let rows = Rows::new("VmSize:\t    3060 kB\nThreads:\t7\nfile 4096\nName:\tx y\n");
        assert_eq!(rows.get("VmSize"), Some(3_060 << 10));
        assert_eq!(rows.get("Threads"), Some(7));
        assert_eq!(rows.get("file"), Some(4_096));
        assert_eq!(rows.get("Vm"), None);
        assert_eq!(rows.get("Name"), None, "no number");
        assert_eq!(rows.or_zero("VmSwap"), 0);
        assert_eq!(Rows::new("A: 18446744073709551615 kB").get("A"), None);
    }
}
