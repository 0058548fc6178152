//! Looks at files that may never come back.
//!
//! The kernel's own files answer at once. What stands in their place may hang: a pipe, a mount of a network that is gone.
//! Nothing ends a thread that waits for such a file, so each look is off the runtime's workers, and is waited for only so
//! long. While one hangs there is no other at the same place, so the threads that hang do not grow in number. What it
//! brings after all is of the past, and dropped.

use std::time::Duration;

use tokio::{task::JoinHandle, time::timeout};

use crate::config::Scope;

/// How long files may take that take no time. Longer than a host with no processor left needs for a few of them.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Those of one signal.
pub(super) struct Looks<T> {
    hanging: Option<(Scope, JoinHandle<T>)>,
}

impl<T> Default for Looks<T> {
    fn default() -> Self {
        Looks { hanging: None }
    }
}

impl<T: Send + 'static> Looks<T> {
    /// What `look` sees at `scope`; nothing if that takes longer than [`PATIENCE`], or an earlier look there still hangs.
    pub(super) async fn at(
        &mut self,
        scope: &Scope,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        if let Some((place, earlier)) = self.hanging.take()
            && place == *scope
            && !earlier.is_finished()
        {
            self.hanging = Some((place, earlier));
            return None;
        }
        let mut looking = tokio::task::spawn_blocking(look);
        match timeout(PATIENCE, &mut looking).await {
            Ok(seen) => seen.ok(),
            Err(_) => {
                self.hanging = Some((scope.clone(), looking));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A look that hangs until its end is dropped.
    async fn hang(looks: &mut Looks<u32>, scope: &Scope) -> mpsc::Sender<()> {
        let (end, hangs) = mpsc::channel();
        let look = move || {
            let _ = hangs.recv();
            1
        };
        let (seen, ()) = tokio::join!(looks.at(scope, look), tokio::time::advance(PATIENCE));
        assert_eq!(seen, None);
        end
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_look_hangs_there_is_no_other_but_at_another_place() {
        let mut looks = Looks::default();
        let place = Scope::Cgroup("/one".into());
        let end = hang(&mut looks, &place).await;
        assert_eq!(looks.at(&place, || 2).await, None, "the first still hangs");

        drop(end);
        while looks
            .hanging
            .as_ref()
            .is_some_and(|(_, it)| !it.is_finished())
        {
            tokio::task::yield_now().await;
        }
        assert_eq!(looks.at(&place, || 3).await, Some(3), "and not the old one");

        let _end = hang(&mut looks, &place).await;
        assert_eq!(looks.at(&Scope::Host, || 4).await, Some(4));
    }
}
