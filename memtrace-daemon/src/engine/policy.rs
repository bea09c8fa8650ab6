//! Who is booked by cgroup path or systemd unit: rules on names that only user space knows.
//!
//! Says yes, no or nothing; the kernel side keeps to it.

use crate::{
    config::{Exclude, Include},
    host::cgroup,
};

/// The rules on cgroups and units.
#[derive(Clone, Debug, Default)]
pub struct CgroupPolicy {
    include: Rules,
    exclude: Rules,
}

#[derive(Clone, Debug, Default)]
struct Rules {
    cgroups: Vec<String>,
    units: Vec<String>,
}

impl Rules {
    fn is_empty(&self) -> bool {
        self.cgroups.is_empty() && self.units.is_empty()
    }

    fn matches(&self, path: &str) -> bool {
        let below = |rule: &String| {
            let rule = rule.trim_end_matches('/');
            path.strip_prefix(rule).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.cgroups.iter().any(below)
            || cgroup::unit(path).is_some_and(|unit| self.units.iter().any(|rule| rule == unit))
    }
}

impl CgroupPolicy {
    /// The rules of a configuration.
    #[must_use]
    pub fn new(include: &Include, exclude: &Exclude) -> Self {
        let rules = |cgroups: &[String], units: &[String]| Rules {
            cgroups: cgroups.to_vec(),
            units: units.to_vec(),
        };
        Self {
            include: rules(&include.cgroup, &include.unit),
            exclude: rules(&exclude.cgroup, &exclude.unit),
        }
    }

    /// Whether there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Whether a process in this cgroup is booked; `None` where no rule names it.
    #[must_use]
    pub fn says(&self, path: &str) -> Option<bool> {
        if self.exclude.matches(path) {
            return Some(false);
        }
        self.include.matches(path).then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_holds_for_all_that_is_below() {
        let include = Include { cgroup: vec!["/ml.slice".into()], ..Include::default() };
        let exclude = Exclude { unit: vec!["noise.service".into()], ..Exclude::default() };
        let policy = CgroupPolicy::new(&include, &exclude);
        assert_eq!(policy.says("/ml.slice"), Some(true));
        assert_eq!(policy.says("/ml.slice/vllm.service"), Some(true));
        assert_eq!(policy.says("/ml.slicer"), None);
        assert_eq!(policy.says("/ml.slice/noise.service"), Some(false));
        assert_eq!(policy.says("/"), None);
    }
}
