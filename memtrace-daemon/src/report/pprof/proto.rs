//! The messages of pprof's `profile.proto` (github.com/google/pprof, `proto/profile.proto`), as
//! far as memtrace writes them. Numbers and types are the format's; nothing may be renumbered.

use prost::Message;

/// A profile. Every `i64` that names something is an index into `string_table`.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What each of a sample's values is.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Files, each at addresses of its own.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Places in code.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions of these places.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All strings; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it was collected, ns since 1970 (UTC).
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// For how long, ns.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What lies between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Lines for people.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The type of the value that a reader shows first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// What a value is, and its unit.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Such as `live_space`.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// Such as `bytes`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack and its values.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Sample {
    /// Locations, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// As many as the profile has sample types.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A word or a number about a sample.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Label {
    /// Its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// The word.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// The number.
    #[prost(int64, tag = "3")]
    pub num: i64,
}

/// A file and the addresses that stand for it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Mapping {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// Address behind the last one.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset in the file of the first address, bytes.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Path.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build id, hex.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether its locations have functions.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// … source files.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// … lines.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// … inlined functions.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A place in code.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Location {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The mapping; 0 for none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// In the mapping's range; may lie inside a call instruction. 0 for none.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Functions, inlined ones before those that they are in.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function, and where in its source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Line {
    /// The function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Source line; 0 for unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Name for programs.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
