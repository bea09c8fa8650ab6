//! Folds recursion: blocks of return addresses that follow themselves are kept once, so that
//! a stack's depth does not make a site of its own.

/// Longest block that is looked for, addresses.
const MAX_PERIOD: usize = 32;
/// Most passes; one folds what repeats, the next what repeats then.
const MAX_PASSES: usize = 8;

/// Leaves repetitions out, and tells how many addresses were left out. `open`: the stack goes
/// on beyond its end, so that a repetition may have begun there.
pub fn fold(addresses: &mut Vec<u64>, open: bool) -> usize {
    let before = addresses.len();
    for _ in 0..MAX_PASSES {
        let length = addresses.len();
        pass(addresses, open);
        if addresses.len() == length {
            break;
        }
    }
    before - addresses.len()
}

fn pass(addresses: &mut Vec<u64>, open: bool) {
    let mut kept = Vec::with_capacity(addresses.len());
    let mut rest = addresses.as_slice();
    while let Some(first) = rest.first() {
        let Some((block, behind)) = repeated(rest) else {
            kept.push(*first);
            rest = rest.get(1..).unwrap_or_default();
            continue;
        };
        kept.extend_from_slice(block);
        rest = behind;
        if open && rest.len() < block.len() && block.starts_with(rest) {
            break;
        }
    }
    *addresses = kept;
}

/// The shortest block at the beginning that follows itself, and what is behind all of them.
fn repeated(addresses: &[u64]) -> Option<(&[u64], &[u64])> {
    for period in 1..=MAX_PERIOD.min(addresses.len() / 2) {
        let (block, mut behind) = addresses.split_at_checked(period)?;
        let mut found = false;
        while let Some(rest) = behind.strip_prefix(block) {
            behind = rest;
            found = true;
        }
        if found {
            return Some((block, behind));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(addresses: &[u64], open: bool) -> (Vec<u64>, usize) {
        let mut addresses = addresses.to_vec();
        let left_out = fold(&mut addresses, open);
        (addresses, left_out)
    }

    #[test]
    fn repetitions_are_kept_once() {
        assert_eq!(folded(&[1, 2, 2, 2, 3], false), (vec![1, 2, 3], 2));
        assert_eq!(folded(&[1, 2, 3, 2, 3, 2, 3, 4], false), (vec![1, 2, 3, 4], 4));
        assert_eq!(folded(&[1, 2, 3, 1], false), (vec![1, 2, 3, 1], 0));
        assert_eq!(folded(&[], true), (vec![], 0));
        // Recursion in recursion.
        assert_eq!(folded(&[1, 1, 2, 1, 2, 1, 1, 1, 2, 9], false), (vec![1, 2, 9], 7));
    }

    #[test]
    fn where_a_stack_is_cut_within_a_repetition_makes_no_difference() {
        let stack: Vec<u64> =
            [7].into_iter().chain([1, 2, 3].into_iter().cycle().take(90)).collect();
        for cut in 10..stack.len() {
            assert_eq!(folded(&stack[..cut], true).0, [7, 1, 2, 3], "{cut}");
        }
    }

    #[test]
    fn a_long_period_is_found_and_a_longer_one_is_left() {
        let block: Vec<u64> = (0..32).collect();
        assert_eq!(folded(&block.repeat(5), false).0, block);
        let block: Vec<u64> = (0..33).collect();
        assert_eq!(folded(&block.repeat(5), false).1, 0);
    }
}
