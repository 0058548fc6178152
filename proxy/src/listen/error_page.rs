//! The answer to what is no request at all.
//!
//! pingora answers a head that it cannot read before it calls anybody, with a page of its own that names another server
//! than the one the client thinks it talks to; no option changes that. Only the connection sees those bytes, and knows that
//! no request of it is being served: there they are replaced. Reading the heads ourselves first was rejected: two readers
//! of one head are how requests get smuggled.

/// Said to a client that sent something that is no request.
pub const NO_REQUEST: &str = "packgate: this is not a request that can be passed on.\n";

/// The whole answer. pingora closes the connection after its own.
pub(super) const PAGE: &str = "HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Cache-Control: no-store\r\n\
    Content-Length: 55\r\n\
    Connection: close\r\n\r\n\
    packgate: this is not a request that can be passed on.\n";

/// Whether `written` is the beginning of pingora's own error page.
pub(super) fn is_pingoras(written: &[u8]) -> bool {
    written.starts_with(b"HTTP/1.1 400 ")
        && memchr::memmem::find(written, b"\r\nServer: Pingora\r\n").is_some()
}

#[cfg(test)]
mod tests {
    use pingora_core::protocols::http::ServerSession;

    use super::*;

    #[test]
    fn the_page_says_what_the_service_would_say_and_how_long_that_is() {
        let (head, text) = PAGE.split_once("\r\n\r\n").expect("a head and a text");
        assert_eq!(text, NO_REQUEST);
        assert!(head.contains(&format!("Content-Length: {}\r\n", text.len())));
    }

    #[test]
    fn pingoras_page_still_looks_like_this() {
        let page = ServerSession::generate_error(400);
        assert_eq!(page.headers["server"], "Pingora");
        assert!(is_pingoras(
            b"HTTP/1.1 400 Bad Request\r\nServer: Pingora\r\nContent-Length: 0\r\n\r\n"
        ));
        assert!(!is_pingoras(b"HTTP/1.1 200 OK\r\nServer: Pingora\r\n\r\n"));
    }
}
