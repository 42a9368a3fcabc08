//! Model checks of the hand-over: a bell is answered, or whoever must answer it is awake, woken, or paced.

use loom::sync::Arc;
use loom::thread;

use super::*;
use crate::channel::map::Control;
use crate::readiness;

/// Thread numbers.
const SLEEPER: u32 = 1;
const DRIVER: u32 = 2;

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// A turn: takes what was rung.
fn turn(control: &Control) -> u32 {
    let mut heard = 0;
    control.doorbells(0).unwrap().take(0, |_| {
        heard += 1;
        true
    });
    heard
}

/// Takes the token, is awake, turns once and goes back to the program. None: somebody else has the token.
fn drive(words: &Words, control: &Control, me: u32) -> Option<u32> {
    let taken = words.take_to_drive(me)?;
    if taken.was_asleep {
        readiness::end_lcore_sleep(control, 0);
    }
    let heard = turn(control);
    words.give();
    Some(heard)
}

/// Takes the token and sleeps on the bell, unless the last look finds something. Says whether it sleeps, and what it heard.
fn sleep(words: &Words, control: &Control, me: u32, by_helper: bool) -> (bool, u32) {
    let taken = if by_helper {
        words.take_to_watch(me)
    } else {
        words.take_to_drive(me)
    };
    if taken.is_none() {
        return (false, 0);
    }
    readiness::begin_lcore_sleep(control, 0);
    let heard = turn(control);
    let quiet = heard == 0 && !control.doorbells(0).unwrap().may_have_any();
    if quiet {
        words.fall_asleep(by_helper);
    } else {
        readiness::end_lcore_sleep(control, 0);
        if by_helper {
            words.pace();
        }
    }
    words.give();
    (quiet, heard)
}

fn no_bell_is_left_to_nobody(by_helper: bool) {
    check(move || {
        let control = Arc::new(Control::of(1, 0, 0));
        let words = Arc::new(Words::new());
        let ringer = {
            let control = Arc::clone(&control);
            thread::spawn(move || readiness::ring_doorbell(&control, 0).is_some())
        };
        let driver = {
            let (words, control) = (Arc::clone(&words), Arc::clone(&control));
            thread::spawn(move || drive(&words, &control, DRIVER).unwrap_or(0))
        };
        let (sleeps, mut heard) = sleep(&words, &control, SLEEPER, by_helper);
        let written = ringer.join().unwrap();
        heard += driver.join().unwrap();
        // The sleeper is woken by the bell's eventfd, and tries the token.
        if sleeps && written {
            heard += drive(&words, &control, SLEEPER).unwrap_or(0);
        }
        assert!(
            heard == 1 || words.helper_paces(),
            "asleep for ever: the helper sleeps as well"
        );
    });
}

#[test]
fn loom_no_bell_is_left_to_nobody_when_a_thread_goes_to_sleep() {
    no_bell_is_left_to_nobody(false);
}

#[test]
fn loom_no_bell_is_left_to_nobody_when_the_helper_goes_to_sleep() {
    no_bell_is_left_to_nobody(true);
}

#[test]
fn loom_one_drives_at_a_time() {
    check(|| {
        let words = Arc::new(Words::new());
        let inside = Arc::new(AtomicU32::new(0));
        let enter = |words: &Words, inside: &AtomicU32, me| {
            if words.take_to_drive(me).is_some() {
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                inside.store(me, Ordering::Relaxed);
                assert_eq!(words.driver(), me);
                inside.store(0, Ordering::Relaxed);
                words.give();
            }
        };
        let other = {
            let (words, inside) = (Arc::clone(&words), Arc::clone(&inside));
            thread::spawn(move || enter(&words, &inside, DRIVER))
        };
        enter(&words, &inside, SLEEPER);
        other.join().unwrap();
    });
}
