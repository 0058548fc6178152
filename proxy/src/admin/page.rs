//! The page for people: three files that are part of the binary, so that it works where nothing else can be reached.
//!
//! They say nothing about anybody; what the page shows it fetches itself, with the token where one is needed. It is plain
//! JavaScript in separate files, which is what lets [the policy](super::CONTENT_POLICY) forbid everything inline.

/// The content type and the content of a file of the page.
pub(super) fn file(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "/" => Some(("text/html; charset=utf-8", include_str!("page/index.html"))),
        "/page.css" => Some(("text/css; charset=utf-8", include_str!("page/page.css"))),
        "/page.js" => Some((
            "text/javascript; charset=utf-8",
            include_str!("page/page.js"),
        )),
        _ => None,
    }
}
