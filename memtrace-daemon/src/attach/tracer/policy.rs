//! Who is followed, who is left out, and what is followed exactly.

use aya::maps::{HashMap, MapData};
use memtrace_common::{Policy, ProcessKey};

use super::{
    NOTE_TRACED, Tracer,
    access::{insert, program, remove, typed},
    iterate,
};
use crate::attach::{error::TracerError, options::Subject, plain::Plain};

impl Tracer {
    /// Follows a thread group, and from now on its children. It is on the books from here on,
    /// whether or not it ever does anything.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn trace(&mut self, tgid: u32) -> Result<(), TracerError> {
        insert(&mut self.ebpf, "mt_traced", tgid, 1_u32)?;
        self.raise_generation()?;
        iterate::run(program(&mut self.ebpf, NOTE_TRACED)?)
            .map_err(|source| TracerError::Run { name: NOTE_TRACED, source })
    }

    /// Says whether a subject is booked or left out.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn set_policy(&mut self, subject: &Subject, include: bool) -> Result<(), TracerError> {
        let said = said(include);
        match subject {
            Subject::Comm(comm) => {
                let mut key = [0_u8; 16];
                // The kernel keeps 15 bytes of a name.
                for (to, from) in key.iter_mut().take(15).zip(comm.bytes()) {
                    *to = from;
                }
                insert(&mut self.ebpf, "mt_policy_comm", key, said)?;
            }
            Subject::Uid(uid) => insert(&mut self.ebpf, "mt_policy_uid", *uid, said)?,
        }
        self.raise_generation()
    }

    /// Says whether one process is booked or left out; with `None`, that it is neither, whatever
    /// it has from its parent.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn set_process_policy(
        &mut self,
        key: ProcessKey,
        include: Option<bool>,
    ) -> Result<(), TracerError> {
        const NAME: &str = "mt_policy_proc";
        let known: HashMap<&MapData, Plain<ProcessKey>, u32> = typed(&self.ebpf, NAME)?;
        if known.get(&Plain(key), 0).ok() == include.map(said) {
            return Ok(());
        }
        match include {
            Some(include) => insert(&mut self.ebpf, NAME, Plain(key), said(include))?,
            None => remove::<_, u32>(&mut self.ebpf, NAME, Plain(key))?,
        }
        self.raise_generation()
    }

    /// Follows a call site exactly from now on: its kernel stacks become sites of their own.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn promote(&mut self, call_site: u64) -> Result<(), TracerError> {
        insert(&mut self.ebpf, "mt_promoted", call_site, 1_u32)?;
        self.run("mt_adjust", &[0, 1, u64::from(self.stopped)]).map(drop)
    }
}

const fn said(include: bool) -> u32 {
    if include { Policy::INCLUDE } else { Policy::EXCLUDE }
}
