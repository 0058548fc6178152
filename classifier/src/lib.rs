//! STUB: the signatures the proxy relies on; the real crate replaces every body.
#![allow(missing_docs, clippy::todo)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape { Unknown, Probe, LsRefs, ObjectInfo, BundleUri, OtherCommand, Deepening, Incremental, Negotiation, Filtered, Clone, Shallow }
impl Shape {
    pub const ALL: [Shape; 12] = [Shape::Unknown, Shape::Probe, Shape::LsRefs, Shape::ObjectInfo, Shape::BundleUri, Shape::OtherCommand, Shape::Deepening, Shape::Incremental, Shape::Negotiation, Shape::Filtered, Shape::Clone, Shape::Shallow];
    pub fn as_str(self) -> &'static str { todo!() }
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why { Malformed, Encoding, Empty, Truncated, Window, Memory, Timeout }
impl Why { pub fn as_str(self) -> &'static str { todo!() } }
/// `shape`, `why` (only with Unknown), and what was seen up to the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict { pub shape: Shape, pub why: Option<Why>, pub facts: Facts }
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts { pub protocol: Option<u8>, pub wants: u64, pub haves: u64, pub filter: Option<FilterSpec>, pub depth: Option<u32>, pub decided_at: u64 }
/// The filter argument, kept inline and bounded (no allocation).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterSpec;
impl FilterSpec { pub fn as_str(&self) -> &str { todo!() } }
/// What the Content-Encoding header says. The bytes have the last word (gzip is sniffed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding { Identity, Gzip, Unsupported }
impl Encoding { pub fn from_header(_value: Option<&[u8]>) -> Encoding { todo!() } }
pub struct Classifier;
impl Classifier {
    /// `decoded_limit`: decoded bytes scanned at most.
    pub fn new(_encoding: Encoding, _decoded_limit: u64) -> Self { todo!() }
    /// Scans the next piece of the raw body. `Some` as soon as the verdict is known; later calls return it again.
    pub fn feed(&mut self, _piece: &[u8]) -> Option<&Verdict> { todo!() }
    /// The body has ended.
    pub fn finish(self) -> Verdict { todo!() }
    /// The caller stops reading (window, memory, timeout): the verdict already reached, else Unknown with `why`.
    pub fn give_up(self, _why: Why) -> Verdict { todo!() }
}
pub fn classify(_body: &[u8], _encoding: Encoding, _decoded_limit: u64) -> Verdict { todo!() }
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint { InfoRefs, UploadPack, ReceivePack, Other }
impl Endpoint { pub fn as_str(self) -> &'static str { todo!() } }
/// `repo`: the accounting key; None for `Other`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route { pub endpoint: Endpoint, pub repo: Option<String> }
/// `target`: the request target as sent (origin or absolute form), query and all.
pub fn route(_method: &str, _target: &[u8]) -> Route { todo!() }
