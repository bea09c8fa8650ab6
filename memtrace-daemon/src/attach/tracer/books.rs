//! The books in the kernel: what is read from the maps, and what is let go of.

use aya::maps::{Array, HashMap, MapData, MapError, Queue};
use memtrace_common::{
    Account, AccountKey, CallLive, CallLiveKey, Control, ProcessEntry, ProcessKey, Totals,
    TotalsKey,
};

use super::{
    Tracer,
    access::{remove, typed, typed_mut},
};
use crate::attach::{error::TracerError, plain::Plain};

impl Tracer {
    /// The next allocation id to be given, and the ids of all live library allocations, sorted.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn live_ids(&self) -> Result<(u64, Vec<u64>), TracerError> {
        let next_id = self.control()?.next_id;
        let map: HashMap<&MapData, Plain<CallLiveKey>, Plain<CallLive>> =
            typed(&self.ebpf, "mt_clive")?;
        // An entry that vanishes while we read was freed: not live. A mapping has no id.
        let ids = map.iter().filter_map(|entry| Some(entry.ok()?.1.0.id));
        let mut ids: Vec<u64> = ids.filter(|id| *id != 0).collect();
        ids.sort_unstable();
        Ok((next_id, ids))
    }

    fn control(&self) -> Result<Control, TracerError> {
        let map: Array<&MapData, Plain<Control>> = typed(&self.ebpf, "mt_control")?;
        map.get(&0, 0)
            .map(|control| control.0)
            .map_err(|source| TracerError::Map { name: "mt_control", source })
    }

    /// Gives the slot of an account back whose process has ended, unless it has live memory.
    /// Returns the account as it was last; `None` if the slot is another's by now.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn delete_account(
        &mut self,
        slot: u32,
        key: &AccountKey,
    ) -> Result<Option<Account>, TracerError> {
        const NAME: &str = "mt_accounts";
        let map_error = |source| TracerError::Map { name: NAME, source };
        let accounts: Array<&MapData, Plain<Account>> = typed(&self.ebpf, NAME)?;
        let Plain(account) = accounts.get(&slot, 0).map_err(map_error)?;
        if account.key != *key {
            return Ok(None);
        }
        if account.live().is_zero() {
            remove::<_, u32>(&mut self.ebpf, "mt_index", Plain(*key))?;
            let mut accounts: Array<&mut MapData, Plain<Account>> =
                typed_mut(&mut self.ebpf, NAME)?;
            accounts.set(slot, Plain(Account::default()), 0).map_err(map_error)?;
            let mut free: Queue<&mut MapData, u32> = typed_mut(&mut self.ebpf, "mt_slots")?;
            free.push(slot, 0).map_err(|source| TracerError::Map { name: "mt_slots", source })?;
        }
        Ok(Some(account))
    }

    /// Deletes the rows of totals of closed address spaces, and returns them as they were last.
    /// One walk over the rows for all of them: the functions that could have one are many, those
    /// that a process uses are few.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn delete_totals(
        &mut self,
        spaces: &[u32],
    ) -> Result<Vec<(TotalsKey, Totals)>, TracerError> {
        const NAME: &str = "mt_totals";
        let map_error = |source| TracerError::Map { name: NAME, source };
        let map: HashMap<&MapData, Plain<TotalsKey>, Plain<Totals>> = typed(&self.ebpf, NAME)?;
        let keys: Vec<TotalsKey> = map
            .keys()
            .filter_map(|key| Some(key.ok()?.0))
            .filter(|key| spaces.contains(&key.space))
            .collect();
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let map: HashMap<&MapData, Plain<TotalsKey>, Plain<Totals>> = typed(&self.ebpf, NAME)?;
            match map.get(&Plain(key), 0) {
                Ok(Plain(totals)) => rows.push((key, totals)),
                Err(MapError::KeyNotFound) => continue,
                Err(source) => return Err(map_error(source)),
            }
            remove::<_, Plain<Totals>>(&mut self.ebpf, NAME, Plain(key))?;
        }
        Ok(rows)
    }

    /// Forgets a process that has ended and whose books have been folded.
    ///
    /// # Errors
    /// What the kernel said.
    pub fn forget_process(&mut self, key: &ProcessKey) -> Result<(), TracerError> {
        remove::<_, u32>(&mut self.ebpf, "mt_policy_proc", Plain(*key))?;
        remove::<_, u32>(&mut self.ebpf, "mt_traced", key.tgid)?;
        remove::<_, Plain<ProcessEntry>>(&mut self.ebpf, "mt_processes", Plain(*key))
    }
}
