//! Any document is a configuration or a list of mistakes, each with a message that says something; what was understood can
//! be told; and the same document is understood in the same way again.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use packgate::config::{Config, Overrides};

fuzz_target!(|document: &[u8]| {
    // The notation of deeply nested flow sequences costs serde_yaml quadratic time; a real file is small.
    if document.len() > 8192 {
        return;
    }
    let understood = Config::from_yaml(document, &Overrides::default());
    match &understood {
        Ok(config) => {
            assert!(!config.listen.is_empty());
            let names: BTreeSet<_> = config
                .policy
                .limits
                .iter()
                .map(|limit| &limit.name)
                .collect();
            assert_eq!(
                names.len(),
                config.policy.limits.len(),
                "two limits of one name"
            );
            for warning in config.warnings() {
                assert!(!warning.to_string().trim().is_empty());
            }
        }
        Err(mistakes) => assert!(!mistakes.to_string().trim().is_empty()),
    }
    let again = Config::from_yaml(document, &Overrides::default());
    assert_eq!(format!("{understood:?}"), format!("{again:?}"));
});
