//! Reading a mapped file that somebody cuts short meanwhile raises SIGBUS, which would end the
//! daemon. On threads that ask for it, the missing page becomes a page of zeros instead (the
//! way systemd reads journals), and the reader is told. All other threads die as before.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

const PAGE: usize = 4_096;
/// `si_code` of a mapping without a page behind it.
const BUS_ADRERR: libc::c_int = 2;

thread_local! {
    // Plain words without a destructor: safe to touch in a signal handler.
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static REPLACED: Cell<u64> = const { Cell::new(0) };
}

static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// From now on this thread gets zeros for pages that are gone.
///
/// # Errors
/// The system's, where the handler cannot be installed.
pub fn guard_this_thread() -> io::Result<()> {
    install()?;
    GUARDED.set(true);
    Ok(())
}

/// How many pages of this thread were replaced by zeros so far.
#[must_use]
pub fn replaced() -> u64 {
    REPLACED.get()
}

fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<Option<i32>> = OnceLock::new();
    let failed = *INSTALLED.get_or_init(|| {
        let mut old = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: an all-zero sigaction is valid; the handler is async-signal-safe (two
        // thread-local words, mmap, sigaction), and `old` is large enough.
        let status = unsafe {
            let mut new: libc::sigaction = std::mem::zeroed();
            new.sa_sigaction = on_bus as *const () as usize;
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &raw const new, old.as_mut_ptr())
        };
        if status != 0 {
            return io::Error::last_os_error().raw_os_error();
        }
        // SAFETY: sigaction succeeded, so it has filled `old` (which was zeroed before).
        let _first = PREVIOUS.set(unsafe { old.assume_init() });
        None
    });
    failed.map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(code)))
}

extern "C" fn on_bus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid siginfo to an SA_SIGINFO handler.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if GUARDED.get() && code == BUS_ADRERR {
        let page = (address & !(PAGE - 1)) as *mut libc::c_void;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the fault says that this page belongs to a mapping without a page behind
        // it; nothing that anybody could have read is replaced.
        if unsafe { libc::mmap(page, PAGE, libc::PROT_READ, flags, -1, 0) } == page {
            REPLACED.set(REPLACED.get() + 1);
            return;
        }
    }
    // Not ours: the earlier handler gets the fault when the instruction is tried again.
    match PREVIOUS.get() {
        // SAFETY: `old` came from sigaction.
        Some(old) => unsafe {
            libc::sigaction(libc::SIGBUS, old, std::ptr::null_mut());
        },
        // SAFETY: SIG_DFL is always valid.
        None => unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_page_that_is_gone_reads_as_zeros() {
        let path = std::env::temp_dir().join(format!("memtrace-bus-{}", std::process::id()));
        std::fs::write(&path, vec![7_u8; 2 * PAGE]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let read = std::thread::spawn(move || {
            guard_this_thread().unwrap();
            // SAFETY: a fresh private mapping of a file that is open; read below through
            // volatile reads only, within its two pages.
            unsafe {
                use std::os::fd::AsRawFd;
                let map = libc::mmap(
                    std::ptr::null_mut(),
                    2 * PAGE,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE,
                    file.as_raw_fd(),
                    0,
                )
                .cast::<u8>();
                assert_ne!(map.cast(), libc::MAP_FAILED);
                file.set_len(PAGE as u64).unwrap();
                let kept = map.read_volatile();
                let gone = map.add(PAGE + 9).read_volatile();
                libc::munmap(map.cast(), 2 * PAGE);
                (kept, gone, replaced())
            }
        });
        assert_eq!(read.join().unwrap(), (7, 0, 1));
    }
}
