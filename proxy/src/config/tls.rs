//! The keys about TLS. The files they name are read at once, and what is wrong with them is reported at the key.

use super::{
    Address, Listen, Upstream, keys,
    scalars::{self, Url},
    walk::{Entry, Mistakes, Section, parsed},
};
use crate::tls::{self, Certificate, Problem, Trust};

/// `{address: …, tls: {certificate: …, key: …}}`.
pub(super) fn listen(entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Listen> {
    let section = Section::open(&entry.path, Some(entry.value), keys::LISTEN, mistakes);
    let address = section.required(
        "address",
        "the address to listen on, such as `0.0.0.0:8443`",
        parsed("an address such as `0.0.0.0:8443`", scalars::listen_address),
        mistakes,
    );
    let tls = match section.get("tls") {
        Some(_) => certificate(&section, mistakes).map(Some),
        None => Some(None),
    };
    let address = address?;
    if matches!(address, Address::Unix(_)) && section.get("tls").is_some() {
        mistakes.add(
            section.path_of("tls"),
            "is for addresses of a network: what goes over a Unix socket does not leave the machine",
        );
        return None;
    }
    Some(Listen { address, tls: tls? })
}

fn certificate(listen: &Section<'_>, mistakes: &mut Mistakes) -> Option<Certificate> {
    let section = listen.section("tls", keys::TLS, mistakes);
    let mut file = |key: &str, what: &'static str, example: &str| {
        let missing = format!("{what}, such as `{example}`");
        let read = parsed(what, scalars::absolute_path);
        section.required(key, &missing, read, mistakes)
    };
    let chain = file(
        "certificate",
        "the file with the certificate and those above it, in PEM form",
        "/etc/packgate/tls/tls.crt",
    );
    let key = file(
        "key",
        "the file with its private key, in PEM form",
        "/etc/packgate/tls/tls.key",
    );
    Certificate::load(&chain?, &key?)
        .map_err(|problems| {
            for problem in problems {
                match problem {
                    Problem::Certificate(message) => {
                        mistakes.add(section.path_of("certificate"), message);
                    }
                    Problem::Key(message) => mistakes.add(section.path_of("key"), message),
                }
            }
        })
        .ok()
}

/// `upstream: https://…`, and everything else that one line can say.
pub(super) fn upstream(url: Url, entry: &Entry<'_>, mistakes: &mut Mistakes) -> Option<Upstream> {
    Some(match url {
        Url::Http { host, port } => Upstream::Http { host, port },
        Url::Unix(path) => Upstream::Unix(path),
        Url::Https { host, port } => {
            let trust = said(&entry.path, Trust::of_the_system(), mistakes);
            let server_name = named(&entry.path, host.clone(), mistakes);
            Upstream::Https {
                host,
                port,
                server_name: server_name?,
                trust: trust?,
            }
        }
    })
}

/// `{url: …, ca: …, server_name: …}`.
pub(super) fn upstream_in(section: &Section<'_>, mistakes: &mut Mistakes) -> Option<Upstream> {
    let entry = section.get("url")?;
    let url = parsed("the server's URL", scalars::upstream)(entry, mistakes);
    let ca = section.optional(
        "ca",
        parsed(
            "the file with the authorities' certificates, in PEM form",
            scalars::absolute_path,
        ),
        mistakes,
    );
    let server_name = section.optional(
        "server_name",
        |entry: &Entry<'_>, mistakes: &mut Mistakes| {
            let name = entry.text("the name in the server's certificate", mistakes)?;
            named(&entry.path, name.to_owned(), mistakes)
        },
        mistakes,
    );
    let (host, port) = match url? {
        Url::Https { host, port } => (host, port),
        plain => {
            for entry in ["ca", "server_name"]
                .iter()
                .filter_map(|key| section.get(key))
            {
                mistakes.add(
                    &entry.path,
                    "is about TLS: write `url: https://…`, or remove it",
                );
            }
            return upstream(plain, entry, mistakes);
        }
    };
    let trust = match ca? {
        Some(path) => said(&section.path_of("ca"), Trust::from_file(&path), mistakes),
        None => said(&entry.path, Trust::of_the_system(), mistakes),
    };
    let server_name = match server_name? {
        Some(name) => Some(name),
        None => named(&entry.path, host.clone(), mistakes),
    };
    Some(Upstream::Https {
        host,
        port,
        server_name: server_name?,
        trust: trust?,
    })
}

fn named(path: &str, name: String, mistakes: &mut Mistakes) -> Option<String> {
    let good = tls::is_server_name(&name);
    if !good {
        mistakes.add(
            path,
            format!(
                "{} cannot be the name in a certificate: write a host name or an address",
                scalars::shown(&name)
            ),
        );
    }
    good.then_some(name)
}

fn said<T>(path: &str, read: Result<T, String>, mistakes: &mut Mistakes) -> Option<T> {
    read.map_err(|message| mistakes.add(path, message)).ok()
}
