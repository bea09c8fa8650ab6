//! Message queues that a fixture left for a suite to look at, removed by id and name, no others.

use std::ffi::CString;

use anyhow::Context;
use serde_json::Value;

/// Queues that live on without their maker. Removed on drop.
#[derive(Debug, Default)]
pub struct Left {
    /// Identifiers of SysV queues.
    pub sysv: Vec<i32>,
    /// Names of POSIX queues.
    pub posix: Vec<String>,
}

impl Left {
    /// Reads `queues` and `names` of a line of the kernel fixture.
    ///
    /// # Errors
    ///
    /// When it has neither.
    pub fn parse(line: &Value) -> anyhow::Result<Self> {
        let list = |name: &str| line.get(name).and_then(Value::as_array);
        let sysv = list("queues").with_context(|| format!("no queues in {line}"))?;
        let posix = list("names").map(Vec::as_slice).unwrap_or_default();
        Ok(Self {
            sysv: sysv
                .iter()
                .filter_map(Value::as_i64)
                .filter_map(|id| id.try_into().ok())
                .collect(),
            posix: posix.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }

    /// Removes them now.
    ///
    /// # Errors
    ///
    /// The first that could not be removed.
    pub fn remove(&mut self) -> anyhow::Result<()> {
        for id in self.sysv.drain(..) {
            // SAFETY: IPC_RMID reads no buffer; the id is one that our fixture made.
            let status = unsafe { libc::msgctl(id, libc::IPC_RMID, std::ptr::null_mut()) };
            if status != 0 {
                let error = std::io::Error::last_os_error();
                return Err(error).with_context(|| format!("removing message queue {id}"));
            }
        }
        for name in self.posix.drain(..) {
            let path = CString::new(name.as_str())?;
            // SAFETY: the name is a NUL-terminated string that lives through the call.
            if unsafe { libc::mq_unlink(path.as_ptr()) } != 0 {
                let error = std::io::Error::last_os_error();
                return Err(error).with_context(|| format!("removing message queue {name}"));
            }
        }
        Ok(())
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("left behind: {error:#}");
        }
    }
}
