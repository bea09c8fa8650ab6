//! The engine: one owner of the books, which publishes immutable snapshots.
