//! From an address in a file to its rule: by `.eh_frame`, else by `.debug_frame`, else by what
//! the code itself tells. Slow, a microsecond or so: results are kept by [`super::files`].

use gimli::{
    BaseAddresses, CommonInformationEntry, DebugFrame, EhFrame, Error, LittleEndian, RegisterRule,
    UnwindContext, UnwindContextStorage, UnwindOffset, UnwindSection, UnwindTableRow,
};

use super::code;
use super::expression::Slice;
use super::image::Image;
use super::index::{Index, Table};
use super::rule::Rule;

/// Longest entry, bytes: each may hold as many instructions.
const MAX_ENTRY: usize = 64 << 10;
/// Most descriptions of nothing that are passed over.
const MAX_EMPTY: usize = 8;
/// Longest entry of what descriptions have in common, bytes; those in use have 20 to 40.
const MAX_COMMON: usize = 4 << 10;
/// Most code bytes looked at from an address on.
const MAX_CODE: usize = 48;

/// Room for the rows that gimli computes, on the heap and used again.
#[derive(Debug, Default)]
pub struct Context(UnwindContext<usize, Store>);

/// How much room: 32 registers, and eight rows that are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store;

impl UnwindContextStorage<usize> for Store {
    type Rules = [(gimli::Register, RegisterRule<usize>); 32];
    type Stack = Box<[UnwindTableRow<usize, Self>; 8]>;
}

/// Indexes of a file's sections, once they were wanted.
#[derive(Debug, Default)]
pub struct Indexes {
    eh: Option<Index>,
    debug: Option<Index>,
}

impl Indexes {
    /// Memory, bytes.
    pub fn heap(&self) -> usize {
        [&self.eh, &self.debug].into_iter().flatten().map(Index::heap).sum()
    }
}

/// An address in a file that a rule is wanted of.
#[derive(Clone, Copy, Debug)]
struct At {
    /// Before relocation.
    address: u64,
    /// Where it was interrupted; else one less than where a call returns to.
    exact: bool,
    /// Offset in the file of the code that runs next.
    next: u64,
}

impl At {
    /// The code that runs next. Not looked at without need: it need not be in memory.
    fn code(self, image: &Image) -> &[u8] {
        let from = usize::try_from(self.next).ok().and_then(|next| image.bytes.get(next..));
        from.map_or(&[], |from| from.get(..MAX_CODE).unwrap_or(from))
    }
}

/// The rule of an address, which is given as an offset in the file. `exact`: it is where the
/// frame was interrupted, else one less than where a call returns to.
pub fn rule(
    image: &mut Image,
    indexes: &mut Indexes,
    context: &mut Context,
    offset: u64,
    exact: bool,
) -> Rule {
    let Some(address) = image.address(offset) else { return Rule::Nothing };
    let at = At { address, exact, next: offset.saturating_add(u64::from(!exact)) };
    let by_eh = by_eh_frame(image, indexes, context, at);
    let found = by_eh.or_else(|| by_debug_frame(image, indexes, context, at));
    found.unwrap_or_else(|| code::rule(at.code(image)))
}

fn by_eh_frame(
    image: &Image,
    indexes: &mut Indexes,
    context: &mut Context,
    at: At,
) -> Option<Rule> {
    let part = image.eh_frame.as_ref()?;
    let data = image.bytes.part(&part.range)?;
    let mut section = EhFrame::new(data, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default().set_eh_frame(part.address);
    let table = image
        .eh_frame_hdr
        .as_ref()
        .and_then(|header| Table::of(image.bytes.part(&header.range)?, header.address));
    let offset = match table {
        Some(table) => usize::try_from(table.find(at.address)?.checked_sub(part.address)?).ok()?,
        None => {
            let build = || Index::build(&section, data, &bases, image);
            indexes.eh.get_or_insert_with(build).find(at.address, image.lowest())?
        }
    };
    compile(image, &section, data, &bases, offset.into(), context, at)
}

fn by_debug_frame(
    image: &mut Image,
    indexes: &mut Indexes,
    context: &mut Context,
    at: At,
) -> Option<Rule> {
    image.debug_frame()?;
    let image = &*image;
    let data = debug_data(image)?;
    let mut section = DebugFrame::new(data, LittleEndian);
    section.set_address_size(8);
    let bases = BaseAddresses::default();
    let build = || Index::build(&section, data, &bases, image);
    let offset = indexes.debug.get_or_insert_with(build).find(at.address, image.lowest())?;
    compile(image, &section, data, &bases, offset.into(), context, at)
}

fn debug_data(image: &Image) -> Option<&[u8]> {
    match &image.unpacked {
        Some(unpacked) => Some(unpacked),
        None => image.bytes.part(&image.debug_frame.as_ref()?.range),
    }
}

/// The rule of an address by the description at an offset, if that covers it.
fn compile<'a, S: UnwindSection<Slice<'a>>>(
    image: &Image,
    section: &S,
    data: &[u8],
    bases: &BaseAddresses,
    offset: S::Offset,
    context: &mut Context,
    at: At,
) -> Option<Rule> {
    let damaged = Some(Rule::Damaged("has unwind information that cannot be read"));
    let mut offset: usize = UnwindOffset::into(offset);
    let mut empty = 0;
    let description = loop {
        let common = |s: &S, bases: &BaseAddresses, at| cie(s, data, bases, at);
        match section.fde_from_offset(bases, offset.into(), common) {
            Ok(description) if description.contains(at.address) => break description,
            // Where code was folded away, lld's table leads to a description of nothing, and
            // the function's own is behind it.
            Ok(description) if description.len() == 0 && empty < MAX_EMPTY => {
                empty += 1;
                offset = offset.checked_add(description.entry_len())?.checked_add(4)?;
            }
            Ok(_) => return None,
            Err(_) if empty > 0 => return None,
            Err(_) => return damaged,
        }
    };
    // What returns to behind a function's end is the address of another one, which no call
    // has put there.
    if description.end_address() == at.address.wrapping_add(1)
        && !at.exact
        && at.code(image).starts_with(&code::SIGRETURN)
    {
        return Some(Rule::Signal);
    }
    if description.entry_len() > MAX_ENTRY {
        return Some(Rule::Damaged("has unwind information beyond the limit"));
    }
    if description.cie().return_address_register().0 != super::registers::RIP {
        return damaged;
    }
    let signal = description.is_signal_trampoline();
    match description.unwind_info_for_address(section, bases, &mut context.0, at.address) {
        Ok(row) => Some(Rule::of(row, signal, data)),
        Err(_) => damaged,
    }
}

/// What several descriptions have in common, unless it is absurdly long: finding the end of
/// its text would take as long.
pub fn cie<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    data: &[u8],
    bases: &BaseAddresses,
    at: S::Offset,
) -> Result<CommonInformationEntry<Slice<'a>>, Error> {
    let start: usize = UnwindOffset::into(at);
    let length = data.get(start..).and_then(|rest| rest.first_chunk::<4>());
    // The escape to 64-bit lengths is beyond the limit as well.
    let length = length.map_or(u32::MAX, |length| u32::from_le_bytes(*length));
    if usize::try_from(length).is_ok_and(|length| length <= MAX_COMMON) {
        section.cie_from_offset(bases, at)
    } else {
        Err(Error::UnsupportedOffset)
    }
}
