//! POSIX messages: they reach the same `load_msg` as SysV messages by another path. They live on
//! without their sender until their queue is unlinked.

use std::ffi::CString;

use anyhow::Context;
use serde_json::json;

use crate::Arguments;
use crate::sysv::Queues;

/// What an unprivileged queue may hold, fs.mqueue.msg_max's default.
const QUEUE_MESSAGES: u64 = 10;

/// POSIX queues of one's own, unlinked on drop unless they are left on purpose.
#[derive(Default)]
struct Named {
    names: Vec<String>,
}

impl Named {
    fn send(&mut self, messages: u64, size: usize) -> anyhow::Result<()> {
        let mut left = messages;
        while left > 0 {
            let batch = left.min(QUEUE_MESSAGES);
            self.send_to_new_queue(batch, size)?;
            left -= batch;
        }
        Ok(())
    }

    fn send_to_new_queue(&mut self, messages: u64, size: usize) -> anyhow::Result<()> {
        let name = format!("/memtrace-fixture-{}-{}", std::process::id(), self.names.len());
        let path = CString::new(name.as_str())?;
        // SAFETY: all zero is a valid mq_attr.
        let mut attributes: libc::mq_attr = unsafe { std::mem::zeroed() };
        attributes.mq_maxmsg = i64::try_from(QUEUE_MESSAGES)?;
        attributes.mq_msgsize = i64::try_from(size)?;
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
        // SAFETY: the name is NUL-terminated, mode and attributes are what O_CREAT asks for.
        let queue = unsafe { libc::mq_open(path.as_ptr(), flags, 0o600, &raw mut attributes) };
        if queue < 0 {
            return Err(std::io::Error::last_os_error()).with_context(|| format!("mq_open {name}"));
        }
        self.names.push(name);
        let text = vec![0; size];
        for _ in 0..messages {
            // SAFETY: the text has `size` bytes, the queue is ours and open.
            let status = unsafe { libc::mq_send(queue, text.as_ptr().cast(), size, 0) };
            if status != 0 {
                return Err(std::io::Error::last_os_error()).context("mq_send");
            }
        }
        // SAFETY: the queue is ours and not used any more.
        unsafe { libc::mq_close(queue) };
        Ok(())
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        for name in &self.names {
            if let Ok(path) = CString::new(name.as_str()) {
                // SAFETY: the name is NUL-terminated and one of ours.
                unsafe { libc::mq_unlink(path.as_ptr()) };
            }
        }
    }
}

/// `both-paths N SIZE`: N messages through msgsnd and N through mq_send; all queues stay.
pub fn both_paths(arguments: &Arguments) -> anyhow::Result<()> {
    let (messages, size) = (arguments.number(0)?, arguments.size(1)?);
    let mut queues = Queues::default();
    queues.send(messages, size)?;
    let mut named = Named::default();
    named.send(messages, size)?;
    let names = std::mem::take(&mut named.names);
    arguments.checkpoint(json!({ "sent": messages, "queues": queues.leave(), "names": names }))
}
