//! Memory that was freed, given back to the system.
//!
//! What a flood took comes in pieces too small for the allocator to give back by itself, and stays with the process.

#![expect(unsafe_code, reason = "the allocator is told through the C library")]

/// Gives back whole pages of freed memory. It takes milliseconds where there is much of it.
pub(crate) fn give_back() {
    // Other C libraries' allocators are not asked: they have no such call.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes a number, and locks each part of the allocator that it looks at.
    unsafe {
        libc::malloc_trim(0);
    }
}
